-- SPDX-License-Identifier: Apache-2.0
--
-- Wireshark dissector of the VIA protocol of via-xdp (UDP ports 4793 to 4856): frames of
-- VIs, and connection management. Package viaxdp/internal/base/wire has the format.
--
--   wireshark -X lua_script:via.lua FILE.pcapng
--   cp via.lua ~/.local/lib/wireshark/plugins/     (for always)
--
-- Filters: via.vi == 0x00010002   via.kind == 6   via.crc.status == "bad"

local via = Proto("via", "Virtual Interface Architecture")

local KINDS = {
  [1] = "data", [2] = "ack", [3] = "probe", [4] = "error", [5] = "close",
  [6] = "rdma write", [7] = "rdma read", [8] = "rdma read data", [9] = "pack", [10] = "sealed",
}
local REASONS = {
  [1] = "receive queue empty", [2] = "message longer than its receive descriptor", [3] = "protocol",
  [4] = "VI not connected", [5] = "RDMA write refused", [6] = "RDMA read refused",
  [7] = "nothing heard for the silence", [8] = "message past the memory of its receive descriptor",
}
local CM_TYPES = {
  [1] = "request", [2] = "pending", [3] = "accept", [4] = "confirm", [5] = "reject",
  [6] = "no-match", [7] = "cancel", [8] = "hello", [9] = "here",
  [10] = "retry", [11] = "confirmed",
}
local CM_REASONS = {
  [0] = "none given", [1] = "refused by the program", [2] = "out of resources", [3] = "timed out",
  [4] = "NIC closed", [5] = "unknown exchange", [6] = "attributes do not match",
  [7] = "reliability levels differ", [8] = "maximum transfer sizes differ", [9] = "qualities of service differ",
  [10] = "a pre-shared key is required", [11] = "no pre-shared key there", [12] = "pre-shared keys differ",
  [13] = "protocol versions differ",
}
local LEVELS = { [1] = "unreliable", [2] = "reliable delivery", [4] = "reliable reception" }

local f = {
  version = ProtoField.uint8("via.version", "Version", base.HEX),
  kind = ProtoField.uint8("via.kind", "Kind", base.DEC, KINDS),
  flags = ProtoField.uint16("via.flags", "Flags", base.HEX),
  first = ProtoField.bool("via.flags.first", "First frame of a message", 16, nil, 0x0001),
  last = ProtoField.bool("via.flags.last", "Last frame of a message", 16, nil, 0x0002),
  has_imm = ProtoField.bool("via.flags.immediate", "Immediate data", 16, nil, 0x0004),
  ack_now = ProtoField.bool("via.flags.ack_now", "Acknowledge now", 16, nil, 0x0008),
  ack_soon = ProtoField.bool("via.flags.ack_soon", "Acknowledge soon", 16, nil, 0x0010),
  again = ProtoField.bool("via.flags.again", "Retransmission", 16, nil, 0x0020),
  vi = ProtoField.uint32("via.vi", "Destination VI", base.HEX),
  key = ProtoField.uint64("via.key", "Key", base.HEX),
  seq = ProtoField.uint32("via.seq", "Sequence"),
  ack = ProtoField.uint32("via.ack", "Acknowledgement"),
  window = ProtoField.uint16("via.window", "Window"),
  len = ProtoField.uint16("via.len", "Length"),
  immediate = ProtoField.uint32("via.immediate", "Immediate data", base.HEX),
  reason = ProtoField.uint32("via.reason", "Reason", base.DEC, REASONS),
  read_len = ProtoField.uint32("via.read.len", "Bytes to read"),
  read_seq = ProtoField.uint32("via.read.seq", "Answers read"),
  offset = ProtoField.uint64("via.read.offset", "Offset in the read"),
  addr = ProtoField.uint64("via.remote.addr", "Remote address", base.HEX),
  handle = ProtoField.uint32("via.remote.handle", "Remote handle", base.HEX),
  epoch = ProtoField.uint16("via.sealed.epoch", "Epoch of the key"),
  number = ProtoField.uint64("via.sealed.number", "Number"),
  sealed = ProtoField.bytes("via.sealed.data", "Encrypted"),
  crc = ProtoField.uint32("via.crc", "CRC32C", base.HEX),
  crc_status = ProtoField.string("via.crc.status", "CRC32C status"),
  range = ProtoField.string("via.range", "Selective range"),
  range_from = ProtoField.uint32("via.range.from", "From"),
  range_to = ProtoField.uint32("via.range.to", "Before"),
  record = ProtoField.none("via.record", "Message"),
  record_len = ProtoField.uint16("via.record.len", "Length"),
  record_flags = ProtoField.uint16("via.record.flags", "Flags", base.HEX),
  data = ProtoField.bytes("via.data", "Data"),
  cm_type = ProtoField.uint8("via.cm.type", "Type", base.DEC, CM_TYPES),
  cm_flags = ProtoField.uint16("via.cm.flags", "Flags", base.HEX),
  cm_write = ProtoField.bool("via.cm.flags.rdma_write", "Takes RDMA writes", 16, nil, 0x0001),
  cm_read = ProtoField.bool("via.cm.flags.rdma_read", "Serves RDMA reads", 16, nil, 0x0002),
  cm_peer = ProtoField.bool("via.cm.flags.peer", "Peer-to-peer", 16, nil, 0x0004),
  cm_bare = ProtoField.bool("via.cm.flags.bare", "Can do without checksums of data", 16, nil, 0x0008),
  cm_secure = ProtoField.bool("via.cm.flags.secure", "Handshake", 16, nil, 0x0010),
  cm_has_cookie = ProtoField.bool("via.cm.flags.cookie", "Cookie", 16, nil, 0x0020),
  cm_cookie = ProtoField.uint64("via.cm.cookie", "Cookie", base.HEX),
  cm_handshake = ProtoField.bytes("via.cm.handshake", "Handshake"),
  cm_vi = ProtoField.uint32("via.cm.vi", "Sender's VI", base.HEX),
  cm_key = ProtoField.uint64("via.cm.key", "Key of frames to the sender", base.HEX),
  cm_id = ProtoField.uint64("via.cm.id", "Connection", base.HEX),
  cm_seq = ProtoField.uint32("via.cm.seq", "First sequence"),
  cm_window = ProtoField.uint16("via.cm.window", "Window"),
  cm_payload = ProtoField.uint16("via.cm.max_payload", "Largest frame"),
  cm_transfer = ProtoField.uint32("via.cm.max_transfer", "Longest message"),
  cm_qos = ProtoField.uint32("via.cm.qos", "QoS"),
  cm_level = ProtoField.uint8("via.cm.level", "Reliability level", base.DEC, LEVELS),
  cm_reason = ProtoField.uint8("via.cm.reason", "Reason", base.DEC, CM_REASONS),
  cm_port_offset = ProtoField.uint8("via.cm.port_offset", "Port offset"),
  cm_from = ProtoField.bytes("via.cm.from", "From discriminator"),
  cm_to = ProtoField.bytes("via.cm.to", "To discriminator"),
}
local fields = {}
for _, field in pairs(f) do
  fields[#fields + 1] = field
end
via.fields = fields

local HEADER, PORT, PORTS = 48, 4793, 64

via.prefs.check = Pref.bool("Check the CRC32C", true, "Compute the checksum of each frame, which takes time")

local bits = bit32 or bit
local bxor, band, rshift = bits.bxor, bits.band, bits.rshift
local crc_table = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do
    if band(c, 1) == 1 then
      c = bxor(rshift(c, 1), 0x82f63b78)
    else
      c = rshift(c, 1)
    end
  end
  crc_table[i] = c
end

local function crc_of(c, bytes)
  for i = 0, bytes:len() - 1 do
    c = bxor(crc_table[band(bxor(c, bytes:get_index(i)), 0xff)], rshift(c, 8))
  end
  return c
end

-- The checksum goes over what follows the header, then the header without its
-- field, or, where the two sides have agreed so, the header alone.
local function crc_status(tvb, length)
  local head = tvb(0, 44):bytes()
  local function sum(with_data)
    local c = 0xffffffff
    if with_data and length > HEADER then
      c = crc_of(c, tvb(HEADER, length - HEADER):bytes())
    end
    c = bxor(crc_of(c, head), 0xffffffff)
    return band(c, 0xffffffff) % 0x100000000
  end
  local want = tvb(44, 4):uint()
  if sum(true) == want then return "good" end
  if sum(false) == want then return "good, of the header" end
  return "bad"
end

local function flags_tree(tree, tvb, all, list)
  local sub = tree:add(all, tvb)
  for _, flag in ipairs(list) do
    sub:add(flag, tvb)
  end
end

local function dissect_ranges(tvb, tree)
  for at = 0, tvb:len() - 8, 8 do
    local from, to = tvb(at, 4), tvb(at + 4, 4)
    local sub = tree:add(f.range, tvb(at, 8), string.format("%u to %u", from:uint(), to:uint()))
    sub:add(f.range_from, from)
    sub:add(f.range_to, to)
  end
end

local function dissect_records(tvb, tree)
  local at = 0
  while at + 4 <= tvb:len() do
    local length, flags = tvb(at, 2):uint(), tvb(at + 2, 2):uint()
    local imm, write = band(flags, 0x0004) ~= 0, band(flags, 0x0100) ~= 0
    local whole = 4 + (imm and 4 or 0) + (write and 12 or 0) + length
    if at + whole > tvb:len() then
      tree:add_expert_info(PI_MALFORMED, PI_ERROR, "a message goes past the frame")
      return
    end
    local sub = tree:add(f.record, tvb(at, whole))
    sub:add(f.record_len, tvb(at, 2))
    sub:add(f.record_flags, tvb(at + 2, 2))
    local p = at + 4
    if imm then
      sub:add(f.immediate, tvb(p, 4))
      p = p + 4
    end
    if write then
      sub:add(f.addr, tvb(p, 8))
      sub:add(f.handle, tvb(p + 8, 4))
      p = p + 12
    end
    if length > 0 then sub:add(f.data, tvb(p, length)) end
    at = at + whole
  end
end

-- How long the handshake of a message is: a request and an accept have a share, a
-- confirm a proof.
local function handshake_len(tvb)
  if band(tvb(2, 2):uint(), 0x0010) == 0 then return 0 end
  return ({ [1] = 48, [3] = 48, [4] = 16 })[band(tvb(1, 1):uint(), 0x7f)] or 0
end

-- How long the cookie of a request is.
local function cookie_len(tvb)
  if band(tvb(1, 1):uint(), 0x7f) == 1 and band(tvb(2, 2):uint(), 0x0020) ~= 0 then return 8 end
  return 0
end

-- Fields of a frame, each with its offset and length.
local function add(tree, tvb, fields)
  for _, x in ipairs(fields) do tree:add(x[1], tvb(x[2], x[3])) end
end

local function dissect_cm(tvb, pinfo, tree)
  local kind = band(tvb(1, 1):uint(), 0x7f)
  tree:add(f.cm_type, tvb(1, 1), kind)
  flags_tree(tree, tvb(2, 2), f.cm_flags, { f.cm_write, f.cm_read, f.cm_peer, f.cm_bare, f.cm_secure, f.cm_has_cookie })
  add(tree, tvb, {
    { f.cm_vi, 4, 4 }, { (kind == 4 or kind == 10) and f.cm_cookie or f.cm_key, 8, 8 }, { f.cm_id, 16, 8 }, { f.cm_seq, 24, 4 }, { f.cm_window, 28, 2 },
    { f.cm_payload, 30, 2 }, { f.cm_transfer, 32, 4 }, { f.cm_qos, 36, 4 }, { f.cm_level, 40, 1 },
    { (kind == 1 or kind == 3) and f.cm_port_offset or f.cm_reason, 41, 1 },
  })
  local from, to = tvb(42, 1):uint(), tvb(43, 1):uint()
  if from > 0 and HEADER + from <= tvb:len() then tree:add(f.cm_from, tvb(HEADER, from)) end
  if to > 0 and HEADER + from + to <= tvb:len() then tree:add(f.cm_to, tvb(HEADER + from, to)) end
  local shake = handshake_len(tvb)
  if shake > 0 and HEADER + from + to + shake <= tvb:len() then
    tree:add(f.cm_handshake, tvb(HEADER + from + to, shake))
  end
  local cookie = cookie_len(tvb)
  if cookie > 0 and HEADER + from + to + shake + cookie <= tvb:len() then
    tree:add(f.cm_cookie, tvb(HEADER + from + to + shake, cookie))
  end
  pinfo.cols.info = "connection management: " .. (CM_TYPES[kind] or ("type " .. kind))
end

-- Another frame, encrypted: what is in clear of it.
local function dissect_sealed(tvb, pinfo, tree)
  add(tree, tvb, { { f.kind, 1, 1 }, { f.epoch, 2, 2 }, { f.vi, 4, 4 }, { f.key, 8, 8 }, { f.number, 16, 8 } })
  tree:add(f.sealed, tvb(24))
  pinfo.cols.info = string.format("sealed VI %08x", tvb(4, 4):uint())
end

local function dissect_frame(tvb, pinfo, tree)
  local kind = tvb(1, 1):uint()
  tree:add(f.kind, tvb(1, 1))
  flags_tree(tree, tvb(2, 2), f.flags, { f.first, f.last, f.has_imm, f.ack_now, f.ack_soon, f.again })
  add(tree, tvb, { { f.vi, 4, 4 }, { f.key, 8, 8 } })
  local seq = ""
  if kind ~= 2 and kind ~= 3 then -- acknowledgements and probes have no place in the sequence
    tree:add(f.seq, tvb(16, 4))
    seq = string.format(" seq %u", tvb(16, 4):uint())
  end
  add(tree, tvb, { { f.ack, 20, 4 }, { f.window, 24, 2 }, { f.len, 26, 2 } })
  -- What immediate data, address and handle mean to each kind; nothing to the others.
  local what = {
    [1] = { f.immediate, f.addr, f.handle }, [4] = { f.reason }, [6] = { f.immediate, f.addr, f.handle },
    [7] = { f.read_len, f.addr, f.handle }, [8] = { f.read_seq, f.offset },
  }
  local fields = what[kind] or {}
  if fields[1] then tree:add(fields[1], tvb(28, 4)) end
  if fields[2] then tree:add(fields[2], tvb(32, 8)) end
  if fields[3] then tree:add(fields[3], tvb(40, 4)) end

  local length = tvb(26, 2):uint()
  pinfo.cols.info = string.format("%s VI %08x%s ack %u len %u",
    KINDS[kind] or ("kind " .. kind), tvb(4, 4):uint(), seq, tvb(20, 4):uint(), length)
  if HEADER + length > tvb:len() or length == 0 then return end
  local payload = tvb(HEADER, length)
  if kind == 2 then
    dissect_ranges(payload, tree)
  elseif kind == 9 then
    dissect_records(payload, tree)
  else
    tree:add(f.data, payload)
  end
end

function via.dissector(tvb, pinfo, root)
  if tvb:len() < HEADER or rshift(tvb(0, 1):uint(), 4) ~= 0xa then return 0 end
  pinfo.cols.protocol = "VIA"
  local tree = root:add(via, tvb())
  tree:add(f.version, tvb(0, 1))
  if tvb(0, 1):uint() ~= 0xa3 then
    tree:add_expert_info(PI_UNDECODED, PI_WARN, "another version of the format")
    return tvb:len()
  end
  if tvb(1, 1):uint() == 10 then
    dissect_sealed(tvb, pinfo, tree)
    return tvb:len()
  end
  local length = HEADER
  if band(tvb(1, 1):uint(), 0x80) ~= 0 then
    dissect_cm(tvb, pinfo, tree)
    length = HEADER + tvb(42, 1):uint() + tvb(43, 1):uint() + handshake_len(tvb) + cookie_len(tvb)
  else
    dissect_frame(tvb, pinfo, tree)
    length = HEADER + tvb(26, 2):uint()
  end
  local crc = tree:add(f.crc, tvb(44, 4))
  if via.prefs.check and length <= tvb:len() and tvb:len() == tvb:reported_len() then
    local status = crc_status(tvb, length)
    crc:add(f.crc_status, tvb(44, 4), status):set_generated()
    if status == "bad" then crc:add_expert_info(PI_CHECKSUM, PI_ERROR, "CRC32C mismatch") end
  end
  return tvb:len()
end

DissectorTable.get("udp.port"):add(PORT .. "-" .. PORT + PORTS - 1, via)
