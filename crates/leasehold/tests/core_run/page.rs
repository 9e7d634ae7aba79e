//! What is generated from the table.

use super::given::compare;

#[test]
fn the_page_of_the_state_machine_is_what_the_table_says() {
    compare("../../docs/state-machine.md", &leasehold::run::markdown());
}
