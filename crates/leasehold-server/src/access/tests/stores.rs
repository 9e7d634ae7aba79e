//! What depends on the store: the same on each of them, over handles of their own as several processes have.

use super::*;
use leasehold::{
    clock::SystemClock,
    store::{postgres::PostgresStore, sqlite::SqliteStore},
};
use leasehold_testkit::postgres::{Cluster, Version};
use tokio::sync::Barrier;

const TOGETHER: usize = 20;

fn access(stores: &[Arc<dyn Store>]) -> Vec<Access> {
    let clock = Arc::new(SystemClock::new().unwrap());
    stores.iter().map(|store| Access::new(store.clone(), clock.clone())).collect()
}

/// Twenty who show a link at once, over these handles.
async fn one_of_twenty(handles: Vec<Access>) {
    let root = Who::local(Principal::person("local:root"));
    handles[0].add_user(&root, "ada", Rights::checked(Role::Viewer, &[], &[]).unwrap()).await.unwrap();
    let link = Arc::new(handles[0].login_link(&root, "ada").await.unwrap());
    let together = Arc::new(Barrier::new(TOGETHER));
    let mut all = Vec::new();
    for n in 0..TOGETHER {
        let (access, link, together) = (handles[n % handles.len()].clone(), link.clone(), together.clone());
        all.push(tokio::spawn(async move {
            together.wait().await;
            access.consume_link(link.secret.expose_secret(), None).await.unwrap()
        }));
    }
    let mut sessions = Vec::new();
    for one in all {
        sessions.extend(one.await.unwrap());
    }
    assert_eq!(sessions.len(), 1);
    let who = handles[0].session(sessions[0].secret.expose_secret()).await.unwrap();
    assert_eq!(who.unwrap().principal.id, "user:ada");
    let whats: Vec<What> = handles[0].audit(None, 99).await.unwrap().items.into_iter().map(|(_, entry)| entry.what).collect();
    let begun = whats.iter().filter(|what| **what == What::SessionStarted).count();
    assert_eq!((begun, whats.len()), (1, 4), "{whats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_link_that_twenty_show_at_once_gives_one_session() {
    for _ in 0..20 {
        let store: Arc<dyn Store> = MemoryStore::new(ManualClock::new());
        one_of_twenty(access(&[store])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_link_that_twenty_show_at_once_gives_one_session_on_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let open = || -> Arc<dyn Store> {
        let clock = Arc::new(SystemClock::new().unwrap());
        SqliteStore::open(directory.path().join("runs.db"), clock).unwrap()
    };
    one_of_twenty(access(&[open(), open(), open()])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_link_that_twenty_show_at_once_gives_one_session_on_a_database() {
    let database = Cluster::shared(Version::V15).database().await;
    let open = async || PostgresStore::connect(&database.url()).await.unwrap();
    one_of_twenty(access(&[open().await, open().await, open().await])).await;
}
