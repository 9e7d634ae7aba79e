//! What of the configuration file is in force, where it is written while nobody looks.

use super::{InForce, catalogue::Catalogue};
use crate::{access::Access, cli::Use, config};
use leasehold::{clock::ManualClock, store::memory::MemoryStore};
use std::{path::Path, sync::Arc};

async fn in_force(file: &Path) -> InForce {
    let clock = ManualClock::new();
    let catalogue = Catalogue::new(Access::new(MemoryStore::new(clock.clone()), clock), None);
    let config = config::load(Some(file), &|_| None).unwrap();
    // Written after it was read, and before anybody looks again.
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text.replace("\"a\"", "\"b\"")).unwrap();
    InForce::new(&config, catalogue, Use::Declare).await.unwrap()
}

#[tokio::test]
async fn what_is_written_between_the_start_and_the_first_look_is_in_force_at_that_look() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[[agent]]\nname = \"a\"\n").unwrap();
    let in_force = in_force(file.path()).await;
    let (_, executable) = in_force.now().await.unwrap();
    assert!(executable.registry.agent("b").is_some() && executable.registry.agent("a").is_none());
    // And nothing is read anew that is as it was.
    let (_, again) = in_force.now().await.unwrap();
    assert!(Arc::ptr_eq(&executable, &again));
}

#[tokio::test]
async fn a_file_that_is_made_empty_is_not_a_configuration() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[[agent]]\nname = \"a\"\n").unwrap();
    let in_force = in_force(file.path()).await;
    in_force.now().await.unwrap();
    std::fs::write(file.path(), "").unwrap();
    let (_, executable) = in_force.now().await.unwrap();
    assert!(executable.registry.agent("b").is_some());
}
