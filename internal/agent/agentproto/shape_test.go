package agentproto

import (
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
)

// shape writes down what of a type a message has: names, tags and kinds, those of other
// packages' structures included.
func shape(t reflect.Type, open map[reflect.Type]bool) string {
	_, text := reflect.New(t).Interface().(encoding.TextMarshaler)
	_, own := reflect.New(t).Interface().(json.Marshaler)
	switch {
	case text || own || open[t]:
		return t.String()
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return t.Kind().String() + " " + shape(t.Elem(), open)
	case t.Kind() == reflect.Map:
		return "map " + shape(t.Key(), open) + " " + shape(t.Elem(), open)
	case t.Kind() != reflect.Struct:
		return t.Kind().String()
	}
	open[t] = true
	defer delete(open, t)
	s := "{"
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Tag.Get("json") != "-" {
			s += fmt.Sprintf("%s %q %s;", f.Name, f.Tag.Get("json"), shape(f.Type, open))
		}
	}
	return s + "}"
}

// Program and agent may be of different builds; only the version reveals that. A change of a message's
// contents, even of a field's name in a structure of another package, must raise the version, unless both sides
// understand each other all the same, and must put the new sum here.
func TestShapeHasAVersion(t *testing.T) {
	const version, sum = 6, "c9552d0cb7c862d8"
	s := shape(reflect.TypeFor[Request](), map[reflect.Type]bool{}) + shape(reflect.TypeFor[Reply](), map[reflect.Type]bool{})
	if got := fmt.Sprintf("%.8x", sha256.Sum256([]byte(s))); got != sum || Version != version {
		t.Errorf("version %d with the sum %s, want version %d with %s; messages hold\n%s", Version, got, version, sum, s)
	}
}
