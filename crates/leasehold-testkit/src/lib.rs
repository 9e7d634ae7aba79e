//! Test support for leasehold.
