// Package measure runs the workloads that answer how fast an outbox is on a given server: the benchmarks of bench/ and
// `outbox bench` show what it returns.
//
// Every workload runs its floor, a bare program with the same effect, in the same run and taking turns with the
// outbox, since absolute figures depend on the machine and only ratios travel. Each arm of a comparison has a temporary database
// of its own, because a notification wakes every listening session of its database. bench/doc.go says how to read each figure.
package measure
