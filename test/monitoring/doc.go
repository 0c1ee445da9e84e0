// Package monitoring tests the alert rules and the dashboard of
// artifacts/deploy/monitoring with Prometheus' own engine.
package monitoring
