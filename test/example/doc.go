// Package example audits artifacts/example, which the documentation shows.
package example
