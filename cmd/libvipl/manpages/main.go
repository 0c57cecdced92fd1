// Command manpages writes the manual pages of libvipl: one a function, from its
// prototype in vipl.h and its text in man.txt, and vipl(7) and VIP_DESCRIPTOR(3) from
// sections of docs/libvipl.md.
//
//	manpages -out DIR vipl.h man.txt libvipl.md
//
// With -provider it writes fi_viaxdp(7), from docs/libfabric.md.
//
//	manpages -out DIR -provider libfabric.md
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("manpages: ")
	out := flag.String("out", ".", "write the pages to this `directory`")
	guide := flag.String("provider", "", "write only fi_viaxdp(7), from this `file`")
	flag.Parse()
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			log.Fatal(err)
		}
		return string(b)
	}
	var pages map[string]string
	switch {
	case *guide != "" && flag.NArg() == 0:
		pages = map[string]string{"fi_viaxdp.7": provider(read(*guide))}
	case *guide == "" && flag.NArg() == 3:
		var err error
		if pages, err = render(read(flag.Arg(0)), read(flag.Arg(1)), read(flag.Arg(2))); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatal("want the header, the text and the guide, or -provider and its guide")
	}
	if err := os.MkdirAll(*out, 0o777); err != nil {
		log.Fatal(err)
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(*out, name), []byte(text), 0o666); err != nil {
			log.Fatal(err)
		}
	}
}

// entry of man.txt.
type entry struct {
	name, does string
	paragraphs []string
	returns    []string
	see        []string
}

// render makes all pages, by their file names.
func render(header, text, guide string) (map[string]string, error) {
	protos := prototypes(header)
	entries, err := parse(text)
	if err != nil {
		return nil, err
	}
	pages := map[string]string{"vipl.7": overview(entries, guide), "VIP_DESCRIPTOR.3": descriptor(guide)}
	for _, e := range entries {
		proto, ok := protos[e.name]
		if !ok {
			return nil, fmt.Errorf("%s is not in the header", e.name)
		}
		delete(protos, e.name)
		pages[e.name+".3"] = page(e, proto)
	}
	for name := range protos {
		return nil, fmt.Errorf("%s has no text", name)
	}
	return pages, nil
}

var prototype = regexp.MustCompile(`(?s)VIP_RETURN (Vip\w+)\((.*?)\);`)

// prototypes finds the functions of the header: name, arguments.
func prototypes(header string) map[string][]string {
	all := map[string][]string{}
	for _, m := range prototype.FindAllStringSubmatch(header, -1) {
		args := strings.Split(strings.Join(strings.Fields(m[2]), " "), ", ")
		for i := range args {
			args[i] = strings.TrimPrefix(strings.TrimPrefix(args[i], "IN "), "OUT ")
		}
		all[m[1]] = args
	}
	return all
}

// parse reads man.txt.
func parse(text string) (all []entry, err error) {
	for _, block := range strings.Split(text, "\n\n") {
		block = strings.TrimSpace(block)
		if block == "" || strings.HasPrefix(block, "#") {
			continue
		}
		lines := strings.Split(block, "\n")
		name, does, ok := strings.Cut(lines[0], ": ")
		if !ok {
			return nil, fmt.Errorf("%q: want a name and what it does", lines[0])
		}
		e := entry{name: name, does: does}
		var words []string
		for _, line := range lines[1:] {
			switch {
			case strings.HasPrefix(line, "= "):
				line = line[2:]
				if n := len(e.returns); n > 0 && (!strings.HasPrefix(line, "VIP_") || strings.HasSuffix(e.returns[n-1], ",")) {
					e.returns[n-1] += " " + line
				} else {
					e.returns = append(e.returns, line)
				}
			case strings.HasPrefix(line, "> "):
				e.see = strings.Fields(line[2:])
			default:
				words = append(words, line)
			}
		}
		if len(words) > 0 {
			e.paragraphs = []string{strings.Join(words, " ")}
		}
		if len(e.returns) == 0 || len(e.see) == 0 {
			return nil, fmt.Errorf("%s: what it returns and what else to read is missing", name)
		}
		all = append(all, e)
	}
	return all, nil
}

// escape makes text safe for roff.
func escape(s string) string {
	s = strings.ReplaceAll(s, `\`, `\e`)
	s = strings.ReplaceAll(s, "-", `\-`)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func page(e entry, args []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 3 \"\" \"via-xdp\" \"VI Provider Library\"\n", e.name)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", e.name, escape(e.does))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n.B #include <vipl.h>\n.PP\n")
	fmt.Fprintf(&b, "\\fBVIP_RETURN %s(\\fP\n", e.name)
	for i, arg := range args {
		end := ","
		if i == len(args)-1 {
			end = ");"
		}
		cut := strings.LastIndexAny(arg, " *") + 1
		fmt.Fprintf(&b, "    \\fB%s\\fP\\fI%s\\fP\\fB%s\\fP\n", escape(arg[:cut]), arg[cut:], end)
	}
	fmt.Fprintf(&b, ".fi\n.PP\nLink with \\fB\\-lvipl\\fP.\n")
	if len(e.paragraphs) > 0 {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", escape(strings.Join(e.paragraphs, "\n.PP\n")))
	}
	fmt.Fprintf(&b, ".SH RETURN VALUE\n")
	for _, r := range e.returns {
		code, when, _ := strings.Cut(r, ": ")
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escape(code), escape(when))
	}
	fmt.Fprintf(&b, ".SH NOTES\nIt may be called from any thread at any time.\n.SH SEE ALSO\n")
	for _, s := range e.see {
		fmt.Fprintf(&b, ".BR %s (3),\n", s)
	}
	fmt.Fprintf(&b, ".BR vipl (7)\n")
	return b.String()
}

// overview is vipl(7): all functions, and the guide's sections that a program's author or
// user needs.
func overview(entries []entry, guide string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH vipl 7 \"\" \"via-xdp\" \"VI Provider Library\"\n")
	fmt.Fprintf(&b, ".SH NAME\nvipl \\- VI Provider Library over AF_XDP\n.SH SYNOPSIS\n.B #include <vipl.h>\n.PP\ncc ... \\-lvipl\n")
	for _, title := range []string{"Compile and link", "Devices", "Environment", "Signals, threads, processes", "Room for addresses"} {
		fmt.Fprintf(&b, ".SH %s\n%s", strings.ToUpper(title), roff(section(guide, title)))
	}
	fmt.Fprintf(&b, ".SH FUNCTIONS\n")
	for _, e := range entries {
		fmt.Fprintf(&b, ".TP\n.BR %s (3)\n%s\n", e.name, escape(e.does))
	}
	fmt.Fprintf(&b, ".SH NOTES\n%s\n.SH SEE ALSO\n.BR VIP_DESCRIPTOR (3)\n",
		escape("Files named docs/... are in via-xdp's sources."))
	return b.String()
}

// descriptor is VIP_DESCRIPTOR(3), the guide's section.
func descriptor(guide string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH VIP_DESCRIPTOR 3 \"\" \"via-xdp\" \"VI Provider Library\"\n")
	fmt.Fprintf(&b, ".SH NAME\nVIP_DESCRIPTOR \\- fill in a descriptor, and read it when it is complete\n")
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B #include <vipl.h>\n.SH DESCRIPTION\n%s", roff(section(guide, "Descriptors")))
	fmt.Fprintf(&b, ".SH SEE ALSO\n.BR VipPostSend (3),\n.BR VipPostRecv (3),\n.BR VipRegisterMem (3),\n.BR vipl (7)\n")
	return b.String()
}

// provider is fi_viaxdp(7), the guide's sections in order.
func provider(guide string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH fi_viaxdp 7 \"\" \"via-xdp\" \"Libfabric Programmer's Manual\"\n")
	fmt.Fprintf(&b, ".SH NAME\nfi_viaxdp \\- the libfabric provider over AF_XDP\n")
	for _, title := range []string{"Overview", "Run a program", "Feature matrix", "Supported features", "Limits", "Performance", "Environment"} {
		fmt.Fprintf(&b, ".SH %s\n%s", strings.ToUpper(title), roff(section(guide, title)))
	}
	fmt.Fprintf(&b, ".SH NOTES\n%s\n.SH SEE ALSO\n.BR fabric (7),\n.BR fi_provider (7),\n.BR fi_rxm (7),\n.BR vipl (7)\n",
		escape("Files named docs/... are in via-xdp's sources."))
	return b.String()
}

// section is what is under a heading of a Markdown file.
func section(text, title string) string {
	_, rest, _ := strings.Cut(text, "\n## "+title+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

var marks = strings.NewReplacer("`", "", "**", "")

var link = regexp.MustCompile(`\[([^]]*)\]\(([^)#]*)[^)]*\)`)

// unlink writes a link as its text, and, where the text is not the file's name, names the
// file behind it, as it is called in the sources.
func unlink(line string) string {
	return link.ReplaceAllStringFunc(line, func(s string) string {
		m := link.FindStringSubmatch(s)
		text, file := m[1], path.Join("docs", m[2])
		switch {
		case m[2] == "":
			return text // a section of the same document
		case text == m[2]:
			return file
		}
		return text + " (" + file + ")"
	})
}

// roff makes paragraphs, examples, and tables of two columns, as tagged paragraphs, of
// Markdown.
func roff(text string) string {
	var b strings.Builder
	table, example := false, false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			if example = !example; example {
				b.WriteString(".PP\n.RS 4\n.nf\n")
			} else {
				b.WriteString(".fi\n.RE\n")
			}
			continue
		}
		if example {
			b.WriteString(escape(strings.TrimRight(line, "\n")) + "\n")
			continue
		}
		line = unlink(marks.Replace(strings.TrimSpace(line)))
		switch {
		case line == "":
			b.WriteString(".PP\n")
			table = false
		case strings.HasPrefix(line, "|") && !table:
			table = true // its heads
		case strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "|"):
			cells := strings.SplitN(strings.Trim(line, "| "), " | ", 2)
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escape(cells[0]), escape(strings.ReplaceAll(cells[1], " | ", "; ")))
		case strings.HasPrefix(line, "- "):
			fmt.Fprintf(&b, ".IP \\(bu 2\n%s\n", escape(line[2:]))
		default:
			fmt.Fprintf(&b, "%s\n", escape(line))
		}
	}
	return strings.ReplaceAll(strings.ReplaceAll(b.String(), ".PP\n.PP\n", ".PP\n"), ".PP\n.TP", ".TP")
}
