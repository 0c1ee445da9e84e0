package index

// Table names the rows of one resource, for example "auditresults". The tables
// of an index are fixed when it is opened.
type Table string

// Schema describes a table.
type Schema struct {
	// Table is the table's name. It is part of the file format.
	Table Table `json:"table"`
	// Fields are the paths of the selectable fields, in the order of Attrs.Fields.
	// A file with other tables or fields is set aside when it is opened.
	Fields []string `json:"fields"`
	// GroupBy are the fields whose values tell the groups of rows of a namespace
	// apart, for Query.Scope. They must be among Fields and are no part of the file.
	GroupBy []string `json:"-"`
}

// Key identifies a row within its table. Rows are ordered by Namespace, then
// Name. Namespace is empty for cluster-scoped rows.
type Key struct {
	Namespace string
	Name      string
}

// Attrs are what a row can be selected by without decoding its value.
type Attrs struct {
	// Fields are the values of the table's fields, in the order of Schema.Fields.
	Fields []string
	// Labels are the object's labels.
	Labels map[string]string
}

// Row is one version of a row. Rows that an index hands out are immutable: they
// are shared between readers, who must not modify Value or Attrs.
type Row struct {
	Key
	Attrs
	// Revision at which this version was written: the object's resourceVersion.
	Revision uint64
	// CreateRevision at which the row came into being.
	CreateRevision uint64
	// Value is opaque to the index.
	Value []byte
}

// Change is one row change. Each change has a revision of its own, so that a
// watch can resume after any of them.
type Change struct {
	Table    Table
	Revision uint64
	// Old is the version that was replaced or deleted, nil if the row is new.
	Old *Row
	// New is the version that was written, nil if the row was deleted.
	New *Row
}

// Term is an equality on a field or on a label. The rows that a Query asks for
// satisfy all its terms.
type Term struct {
	// Field is a path of Schema.Fields, or empty if Label is set.
	Field string
	// Label is a label key, or empty if Field is set.
	Label string
	Value string
}

// Query selects rows of a table.
type Query struct {
	Table Table
	// Namespace narrows the query to one namespace; empty means all.
	Namespace string
	// Name narrows the query to rows of this name; empty means all.
	Name string
	// Terms narrow the query through the secondary index.
	Terms []Term
	// Scope narrows the query to groups of rows; nil means all.
	Scope *Scope
	// Match has the last word on a row, by what can be told from key and
	// attributes; nil accepts all. It must be pure: it is called while the index is
	// read, on rows that the answer may not contain.
	Match func(*Row) bool
	// After starts the answer behind this key; nil starts at the first row.
	After *Key
	// Limit on the number of rows in the answer; 0 means none.
	Limit int
	// WithoutAttrs says that the attributes of the rows are of no use to the caller,
	// so that they need not be decoded. Match sees them all the same.
	WithoutAttrs bool
	// Revision to read at; 0 means the current one. ErrCompacted or
	// ErrFutureRevision is returned where it cannot be read.
	Revision uint64
}

// Page is the answer to a Query.
type Page struct {
	// Revision that was read.
	Revision uint64
	Rows     []*Row
	// More is true if rows were left out because of Limit.
	More bool
	// Remaining is the number of rows left out, or -1 if it is not known. It is
	// known for queries without Name, Terms and Match at the current revision: without
	// a Scope only if After is nil, with one unless it has some of very many rows of a
	// namespace.
	Remaining int64
}
