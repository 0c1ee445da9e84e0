// Package corpus has policies and objects to compare engines with: 25 constraints
// of 15 templates, two more templates that read data.inventory, and objects as a
// cluster stores them, with managedFields and status.
//
// The policies are written for this project, in the style of public libraries.
// The objects are random, but the same for each seed.
package corpus
