"""Makes vectors.txt with python3-cryptography, which shares no code with package secure."""
import hashlib
import hmac
import struct
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey as Private
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

PROTOCOL = b"via-xdp 1 NNpsk0 X25519 AES-256-GCM SHA-256"


def extract(ikm, salt):
    return hmac.new(salt, ikm, hashlib.sha256).digest()


def expand(secret, label):  # 32 bytes are one block of RFC 5869
    return hmac.new(secret, label + b"\x01", hashlib.sha256).digest()


def said(*parts):
    return hashlib.sha256(b"".join(struct.pack(">I", len(p)) + p for p in parts)).digest()


def proof(key, what):
    return hmac.new(key, what, hashlib.sha256).digest()[:16]


def public(private):
    return private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def seal(secret, number, plain, clear):
    iv = int.from_bytes(expand(secret, b"iv")[:12], "big") ^ number
    return AESGCM(expand(secret, b"key")).encrypt(iv.to_bytes(12, "big"), plain, clear)


root = extract(bytes(range(32)), PROTOCOL)
requester, acceptor = Private.from_private_bytes(b"\x01" * 32), Private.from_private_bytes(b"\x02" * 32)
h = said(PROTOCOL, b"asks", public(requester))
asks = public(requester) + proof(expand(root, b"request"), h)
h = said(h, asks)
master = extract(requester.exchange(acceptor.public_key()), root)
h = said(h, b"answers", public(acceptor))
answers = public(acceptor) + proof(expand(master, b"accept"), h)
h = said(h, answers)
one, two = expand(master, b"requester" + h), expand(master, b"acceptor" + h)
for name, value in (
    ("request", asks),
    ("answer", answers),
    ("confirm", proof(expand(master, b"confirm"), h)),
    ("requester-0", seal(one, 0, b"hello", b"clear")),
    ("requester-1", seal(one, 1, b"", b"clear")),
    ("requester-2", seal(expand(one, b"next"), 2, b"next key", b"clear")),
    ("acceptor-0", seal(two, 0, b"hello", b"clear")),
):
    print(name, value.hex())
