// Package export writes findings, and what becomes of them, as JSON lines.
//
// A line has the fields that Gatekeeper gives the records of its violation export, so
// that what reads those reads these. It begins with all findings, in the frame that
// Gatekeeper puts around an audit, and goes on with what changes.
//
// Invariants:
//
//   - It reads the index as a watch does and holds nobody up. The history window is its
//     queue: who reads the lines too slowly, for longer than that, misses changes. How
//     many these may be is counted and said in a line, and all findings follow again.
//   - What could not be written is written again. After an error lines may be there
//     twice, and one may be cut short.
//
// It may import the API types, the index and its rows, and no serving code.
package export
