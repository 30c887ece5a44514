// Package check holds the tests of what is in deploy. It is a module of its own, since they need Prometheus's parser.
package check
