package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ulikunitz/xz"
)

// module is a kernel module, decompressed.
type module struct {
	name string
	data []byte
}

// modules finds modules with all that they depend on, in the order in which
// they must be loaded. What is built into the kernel has no file and is left
// out. The packages have no modules.dep, so each module's own list is read.
func (k *kernel) modules(want ...string) ([]module, error) {
	files := make(map[string]string)
	err := filepath.WalkDir(k.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			files[moduleName(name)] = path
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var order []module
	seen := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		path, ok := files[name]
		if !ok || seen[name] {
			return nil
		}
		seen[name] = true
		data, err := readModule(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		depends, err := moduleDepends(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, d := range depends {
			if err := visit(d); err != nil {
				return err
			}
		}
		order = append(order, module{name, data})
		return nil
	}
	for _, name := range want {
		if err := visit(moduleName(name)); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName is a module's name in its one form.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

func readModule(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(path) {
	case ".ko":
		return data, nil
	case ".xz":
		r, err := xz.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	}
	return nil, fmt.Errorf("a module compressed in a way that is not known here")
}

// moduleDepends reads the names that the section .modinfo has under "depends".
func moduleDepends(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	var names []string
	for entry := range strings.SplitSeq(string(info), "\x00") {
		list, ok := strings.CutPrefix(entry, "depends=")
		if !ok {
			continue
		}
		for name := range strings.SplitSeq(list, ",") {
			if name != "" {
				names = append(names, moduleName(name))
			}
		}
	}
	return names, nil
}
