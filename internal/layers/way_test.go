package layers

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// A reader of ARCHITECTURE.md's tables finds each function in the file
// that is named with it: the steps of a message, and where goroutines start.
func TestWhereThingsAre(t *testing.T) {
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	nstest.Must(t, err)
	quoted := regexp.MustCompile("`([^`]+)`")
	found := 0
	for _, row := range tableRows(string(text), "| # | step | where |", "| goroutine | one per | started in | ends with |") {
		file, source := "", ""
		for _, q := range quoted.FindAllStringSubmatch(row[2], -1) {
			name := q[1]
			switch ext := path.Ext(name); {
			case ext == ".go" || ext == ".c":
				if path.Dir(name) == "." {
					name = path.Join(path.Dir(file), name) // beside the one before
				}
				b, err := os.ReadFile(filepath.Join("../..", name))
				if err != nil {
					t.Errorf("%s: %v", row[0], err)
				}
				file, source = name, string(b)
			case strings.Contains(name, "/"): // a package
			default:
				found++
				_, method, isMethod := strings.Cut(name, ".")
				if !isMethod {
					method = name
				}
				if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + regexp.QuoteMeta(method) + `\b`).MatchString(source) {
					t.Errorf("%s: %s is not in %s", row[0], name, file)
				}
			}
		}
	}
	nstest.ErrorIf(t, found < 40, "%d functions in the tables: they are not read", found)
}

// tableRows are the rows of the Markdown tables with these heads, by cells.
func tableRows(text string, heads ...string) (rows [][]string) {
	for _, head := range heads {
		_, body, _ := strings.Cut(text, head+"\n")
		for _, line := range strings.Split(body, "\n")[1:] {
			if !strings.HasPrefix(line, "|") {
				break
			}
			cells := strings.Split(strings.Trim(line, "| "), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}
