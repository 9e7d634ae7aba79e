//! (under construction)

/// The name of a tool on the wire.
pub fn to_wire(name: &str) -> String {
    name.to_owned()
}
