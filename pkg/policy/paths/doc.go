// Package paths describes which parts of a document a program reads, and reduces
// documents to these parts.
//
// A Tree is filled by a static reading of a program. The Projection that is made
// of it has two uses: documents with the same Key look the same to the program, so
// that what it says of one holds for the others; and Project leaves the rest of a
// document out, which then need not be converted for the program.
//
// Texts that a program only shows, such as the name of the object in a message, are not
// in the Key. Project can put something else in their place, by which they are found in
// what the program says and replaced by those of another document.
//
// Invariants:
//
//   - A program that reads what its Tree has and nothing else cannot tell a document
//     from its projection. Where a path leads, every step keeps its type, arrays keep
//     their length and objects that are iterated keep their fields.
//   - Two documents have the same Key if and only if their projections are equal, but
//     for the texts that are only shown. These are in the same order in the Key as in
//     the projection.
//
// Documents are those of encoding/json and of unstructured objects: maps by string,
// slices, strings, int64, float64, bool and nil. The package imports nothing but the
// standard library.
package paths
