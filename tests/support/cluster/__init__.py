"""A cluster for tests: hosts, an object store, Flink, and a service that takes jobs as Dataflow's does."""
