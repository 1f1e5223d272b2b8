package adapters

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/varal-go/varal/core/driver"
)

const (
	maxFile  = 256 << 10
	maxDepth = 32 // a file of ours nests 5 deep
)

// reader takes a YAML document apart by hand, because the library's own decoder
// quotes the lines around a mistake, passwords included. The first mistake is kept.
type reader struct {
	name string
	err  error
	refs *references
}

// fail keeps the first mistake.
func (r *reader) fail(line int, field, format string, args ...any) {
	if r.err != nil {
		return
	}
	op := r.name
	if line > 0 {
		op += ":" + strconv.Itoa(line)
	}
	if field != "" {
		op += ": " + field
	}
	r.err = driver.Errorf(op, driver.Permanent, format, args...)
}

// document returns the top level of the only document of data.
func (r *reader) document(data []byte) *object {
	if !r.readable(data) {
		return nil
	}
	file, err := parse(data)
	if err != nil {
		line, why := 0, "this is not valid YAML"
		if e, ok := errors.AsType[*yaml.SyntaxError](err); ok {
			if e.Token != nil && e.Token.Position != nil {
				line = e.Token.Position.Line
			}
			if !strings.Contains(e.Message, `"`) { // what it quotes may be a secret
				why += ": " + e.Message
			}
		}
		r.fail(line, "", "%s (in {…} quote values that hold ${…})", why)
		return nil
	}
	var body ast.Node
	for _, d := range file.Docs {
		if d.Body == nil {
			continue
		}
		if body != nil {
			r.fail(lineOf(d.Body), "", "a second document begins here: keep one")
			return nil
		}
		body = d.Body
	}
	if body == nil {
		r.fail(0, "", "the file is empty: it needs brokers")
		return nil
	}
	return r.object("", body)
}

// parse keeps a bug of the library from ending the process.
func parse(data []byte) (f *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the parser failed")
		}
	}()
	return parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
}

// readable refuses bytes that are no sane text before the parser sees them.
func (r *reader) readable(data []byte) bool {
	switch {
	case len(data) > maxFile:
		r.fail(0, "", "the file is larger than %d KiB", maxFile>>10)
	case strings.HasPrefix(string(data), "\xef\xbb\xbf"):
		r.fail(1, "", "the file begins with a byte order mark: save it as UTF-8 without BOM")
	case !utf8.Valid(data):
		r.fail(lineAt(data, invalidAt(data)), "", "the file is not UTF-8")
	default:
		r.scan(string(data))
	}
	return r.err == nil
}

// scan looks for nesting no file needs, which costs a parser its stack, and for
// control characters.
func (r *reader) scan(text string) {
	depth, line, dashes := 0, 1, 0
	for i := range len(text) {
		switch c := text[i]; {
		case c == '\n':
			line, dashes = line+1, 0
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth = max(depth-1, 0)
		case (c == '-' || c == '?' || c == ':') && i+1 < len(text) && text[i+1] == ' ':
			dashes++
		case c == '\r' && i+1 < len(text) && text[i+1] == '\n', c == '\t':
		case c < ' ' || c == 0x7f:
			r.fail(line, "", "there is a control character (0x%02x)", c)
		}
		if depth > maxDepth || dashes > 2*maxDepth {
			r.fail(line, "", "this nests deeper than %d levels", maxDepth)
		}
		if r.err != nil {
			return
		}
	}
}

func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		if c == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(data)
}

func lineAt(data []byte, at int) int { return 1 + strings.Count(string(data[:at]), "\n") }

func lineOf(n ast.Node) int {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

// object is one mapping.
type object struct {
	r      *reader
	path   string
	line   int
	fields map[string]*field
	keys   []string // in the order of the file
}

type field struct {
	node ast.Node
	line int
}

// object reads a mapping; it returns an empty one after a mistake.
func (r *reader) object(path string, n ast.Node) *object {
	o := &object{r: r, path: path, line: lineOf(n), fields: map[string]*field{}}
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		r.fail(o.line, path, "fields are wanted here, as in key: value, and not %s", kindOf(n))
	}
	for _, v := range values {
		key, ok := keyOf(v.Key)
		line := lineOf(v.Key)
		switch {
		case !ok:
			r.fail(line, path, "a key must be a plain name: anchors, merges (<<) and complex keys are not supported")
		case o.fields[key] != nil:
			r.fail(line, o.at(key), "the key is there twice, first on line %d", o.fields[key].line)
		default:
			o.fields[key] = &field{node: v.Value, line: line}
			o.keys = append(o.keys, key)
		}
	}
	return o
}

func keyOf(k ast.MapKeyNode) (string, bool) {
	switch k := k.(type) {
	case *ast.StringNode:
		return k.Value, k.Value != ""
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return k.GetToken().Value, true
	}
	return "", false
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "fields"
	case *ast.AnchorNode, *ast.AliasNode:
		return "an anchor or alias, which are not supported"
	case *ast.TagNode:
		return "a tag, which is not supported"
	}
	return "a single value"
}

func (o *object) at(key string) string {
	if o.path == "" {
		return short(key)
	}
	return o.path + "." + short(key)
}

// short keeps a name from filling the screen or forging lines.
func short(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	if q := strconv.Quote(s); q[1:len(q)-1] != s {
		return q
	}
	return s
}

// known refuses every key but these.
func (o *object) known(keys ...string) {
	for _, k := range o.keys {
		if !slices.Contains(keys, k) {
			o.r.fail(o.fields[k].line, o.at(k), "there is no such field: the fields are %s", strings.Join(keys, ", "))
		}
	}
}

func (o *object) fail(key, format string, args ...any) {
	line := o.line
	if f := o.fields[key]; f != nil {
		line = f.line
	}
	o.r.fail(line, o.at(key), format, args...)
}

// lines tells where each field is, its name after prefix.
func (o *object) lines(prefix string) map[string]int {
	out := make(map[string]int, len(o.fields))
	for key, f := range o.fields {
		out[prefix+key] = f.line
	}
	return out
}

func (o *object) has(key string) bool { return o.fields[key] != nil }

// child returns the mapping at key, an empty one where there is none.
func (o *object) child(key string) *object {
	f := o.fields[key]
	if f == nil {
		return &object{r: o.r, path: o.at(key), line: o.line, fields: map[string]*field{}}
	}
	return o.r.object(o.at(key), f.node)
}

// raw returns the scalar at key as written, "" where there is none.
func (o *object) raw(key string) string {
	f := o.fields[key]
	if f == nil {
		return ""
	}
	text, ok := scalar(f.node)
	switch {
	case !ok:
		o.fail(key, "a single value is wanted here, and not %s", kindOf(f.node))
	case text == "":
		o.fail(key, "the value is empty: leave the field out for its default")
	}
	return text
}

func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	case *ast.NullNode:
		return "", true
	}
	return "", false
}

// text returns the value at key with its references resolved.
func (o *object) text(key string) string {
	s := o.raw(key)
	if s == "" || o.r.err != nil {
		return ""
	}
	out, err := o.r.refs.resolve(s, nil)
	if err != nil {
		o.fail(key, "%w", err)
	}
	return out
}

// choice returns what a word stands for.
func choice[T any](o *object, key string, words []string, values []T) (v T) {
	if !o.has(key) {
		return v
	}
	s := o.text(key)
	if i := slices.Index(words, s); i >= 0 {
		return values[i]
	}
	o.fail(key, "%s is none of %s", quote(s), strings.Join(words, ", "))
	return v
}

// number returns a whole number within limits, 0 where there is none.
func (o *object) number(key string, least, most int) int {
	if !o.has(key) {
		return 0
	}
	s := o.text(key)
	n, err := strconv.Atoi(s)
	switch {
	case err != nil:
		o.fail(key, "%s is not a whole number", quote(s))
	case n < least || n > most:
		o.fail(key, "%d is not within %d and %d", n, least, most)
	}
	return n
}

// duration returns a duration within limits, 0 where there is none.
func (o *object) duration(key string, most time.Duration) time.Duration {
	if !o.has(key) {
		return 0
	}
	s := o.text(key)
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		o.fail(key, "%s is not a duration such as 500ms, 30s, 5m or 2h", quote(s))
	case d <= 0:
		o.fail(key, "%s is not positive: leave the field out for its default", quote(s))
	case d > most:
		o.fail(key, "%s is more than %v", quote(s), most)
	}
	return d
}

// boolean returns true or false, false where there is none.
func (o *object) boolean(key string) bool {
	return choice(o, key, []string{"true", "false"}, []bool{true, false})
}

// list returns the texts of a list.
func (o *object) list(key string) (out []string) {
	f := o.fields[key]
	if f == nil {
		return nil
	}
	seq, ok := f.node.(*ast.SequenceNode)
	if !ok {
		o.fail(key, "a list is wanted here, as in [a, b], and not %s", kindOf(f.node))
		return nil
	}
	for _, n := range seq.Values {
		s, ok := scalar(n)
		if !ok || s == "" {
			o.fail(key, "each entry must be a single value")
			return nil
		}
		out = append(out, s)
	}
	return out
}

func quote(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return fmt.Sprintf("%q", s)
}
