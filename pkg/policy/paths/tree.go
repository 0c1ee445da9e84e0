package paths

import "slices"

// Tree is the set of paths that a program reads below one value. Its zero value is a
// program that only asks whether the value is there and of which type it is, and
// what it is if it is a number or a boolean.
type Tree struct {
	fields map[string]*Tree
	each   *Tree
	// whole is true if all of the value is read, but for the text if it is one.
	whole bool
	// text is true if the value is read if it is a text.
	text bool
	// several is true if the tree is of more than one value of the document.
	several bool
}

// Field returns the tree below a field of an object. It is read as a whole if t is by
// now.
func (t *Tree) Field(name string) *Tree {
	if t.fields == nil {
		t.fields = map[string]*Tree{}
	}
	if t.fields[name] == nil {
		t.fields[name] = &Tree{several: t.several, whole: t.whole, text: t.whole}
	}
	return t.fields[name]
}

// Each returns the tree below every element of an array or every field of an object.
// The number of elements and the names of fields are read with it.
func (t *Tree) Each() *Tree {
	if t.each == nil {
		t.each = &Tree{several: true, whole: t.whole, text: t.whole}
	}
	return t.each
}

// Several tells whether the tree stands for more than one value of a document: it is
// below an Each.
func (t *Tree) Several() bool { return t.several }

// ReadAll says that the whole value is read. It tells whether that is news.
func (t *Tree) ReadAll() bool {
	show, text := t.Show(), t.ReadText()
	return show || text
}

// Show says that the whole value is read, but that of a text it makes no difference
// which it is: it is only shown. It tells whether that is news.
func (t *Tree) Show() bool {
	news := !t.whole
	t.whole, t.fields, t.each = true, nil, nil
	return news
}

// ReadText says that it makes a difference which text the value is, if it is one. It
// tells whether that is news.
func (t *Tree) ReadText() bool {
	news := !t.text
	t.text = true
	return news
}

// Whole tells whether the whole value is read, or shown.
func (t *Tree) Whole() bool { return t.whole }

// Reads tells whether anything of the value at a path of field names may be read.
func (t *Tree) Reads(path ...string) bool {
	if t == nil {
		return false
	}
	if t.whole || len(path) == 0 {
		return true
	}
	return t.fields[path[0]].Reads(path[1:]...) || t.each.Reads(path[1:]...)
}

// Below returns the tree below a field, with what is read of all fields.
func (t *Tree) Below(name string) *Tree {
	out := &Tree{whole: t.whole, text: t.whole}
	out.Add(t.fields[name])
	out.Add(t.each)
	return out
}

// Branches returns what is read below the fields of an object: by name, of those that
// are read by name, and below all others, nil if these are not read.
func (t *Tree) Branches() (named map[string]*Tree, others *Tree) {
	if t.whole {
		return nil, &Tree{whole: true, text: true}
	}
	named = make(map[string]*Tree, len(t.fields))
	for name := range t.fields {
		named[name] = t.Below(name)
	}
	return named, t.each
}

// Paths lists the ends of all paths, sorted: fields are separated by dots and elements
// are []. A value that is read as a whole has an asterisk behind it, or a tilde if texts
// are only shown; one that is read if it is a text has an equals sign.
func (t *Tree) Paths() []string {
	var out []string
	t.appendPaths(&out, "")
	slices.Sort(out)
	return out
}

func (t *Tree) appendPaths(out *[]string, path string) {
	end := ""
	switch {
	case t.whole && t.text:
		end = "*"
	case t.whole:
		end = "~"
	case t.text:
		end = "="
	}
	if len(t.fields) == 0 && t.each == nil {
		*out = append(*out, path+end)
		return
	}
	if t.each != nil {
		t.each.appendPaths(out, path+"[]")
	}
	for name, sub := range t.fields {
		sub.appendPaths(out, path+"."+name)
	}
}

// Add adds what another tree reads.
func (t *Tree) Add(other *Tree) {
	if other == nil {
		return
	}
	t.whole = t.whole || other.whole
	t.text = t.text || other.text
	if t.whole {
		t.fields, t.each = nil, nil
		return
	}
	for name, sub := range other.fields {
		t.Field(name).Add(sub)
	}
	if other.each != nil {
		t.Each().Add(other.each)
	}
}
