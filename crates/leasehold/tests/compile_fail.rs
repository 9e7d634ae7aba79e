//! The guard in the type system: what must not compile does not.

#[test]
fn a_write_without_a_fenced_segment_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
