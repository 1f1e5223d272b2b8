package repo_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"unicode"
)

// oversize names what is longer than the budget.
func (s *source) oversize() []string {
	limit := maxFile
	if strings.HasPrefix(s.path, "examples/") && path.Base(s.path) == "main.go" {
		limit = maxExample
	}
	var out []string
	if s.lines > limit {
		out = append(out, fmt.Sprintf("%s: %d lines, at most %d", s.path, s.lines, limit))
	}
	for _, d := range s.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := s.line(f.End()) - s.line(f.Pos()) + 1; n > maxFunction {
			out = append(out, fmt.Sprintf("%s:%d: %s has %d lines, at most %d", s.path, s.line(f.Pos()), f.Name, n, maxFunction))
		}
	}
	return out
}

// undocumented names what others can reach and nobody has described. Methods of
// unexported types are described by the interfaces they implement.
func (s *source) undocumented() []string {
	var out []string
	missing := func(at token.Pos, name string) {
		out = append(out, fmt.Sprintf("%s:%d: %s has no doc comment", s.path, s.line(at), name))
	}
	for _, d := range s.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			of := receiver(d)
			if d.Name.IsExported() && (of == "" || ast.IsExported(of)) && !says(d.Doc) {
				missing(d.Pos(), strings.TrimPrefix(of+"."+d.Name.Name, "."))
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				s.inspectSpec(d, spec, missing)
			}
		}
	}
	return out
}

func (s *source) inspectSpec(d *ast.GenDecl, spec ast.Spec, missing func(token.Pos, string)) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return
		}
		if !says(d.Doc) && !says(spec.Doc) && !says(spec.Comment) {
			missing(spec.Pos(), spec.Name.Name)
		}
		inspectMembers(d, spec, missing)
	case *ast.ValueSpec:
		// One comment may speak for a block of constants or variables.
		if says(d.Doc) || says(spec.Doc) || says(spec.Comment) {
			return
		}
		for _, n := range spec.Names {
			if n.IsExported() {
				missing(n.Pos(), n.Name)
			}
		}
	}
}

// inspectMembers looks at the fields of a struct and the methods of an interface. Each
// has a comment, or is named in one of the type or of a neighbour: "Offset or ID is ...".
func inspectMembers(d *ast.GenDecl, spec *ast.TypeSpec, missing func(token.Pos, string)) {
	var members *ast.FieldList
	switch t := spec.Type.(type) {
	case *ast.StructType:
		members = t.Fields
	case *ast.InterfaceType:
		members = t.Methods
	default:
		return
	}
	text := d.Doc.Text() + spec.Doc.Text()
	for _, m := range members.List {
		text += m.Doc.Text() + m.Comment.Text()
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, m := range members.List {
		if says(m.Doc) || says(m.Comment) {
			continue
		}
		for _, n := range m.Names {
			if n.IsExported() && !slices.Contains(words, n.Name) {
				missing(n.Pos(), spec.Name.Name+"."+n.Name)
			}
		}
	}
}

// receiver is the name of the type that f is a method of.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	e := f.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// says: a comment of directives alone says nothing.
func says(c *ast.CommentGroup) bool { return c != nil && strings.TrimSpace(c.Text()) != "" }
