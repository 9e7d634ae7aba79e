//! The first administrator.
use super::*;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};

fn read(path: &std::path::Path) -> SecretString {
    std::fs::read_to_string(path).unwrap().trim_end().into()
}

#[tokio::test]
async fn the_first_start_makes_an_admin_whose_token_only_its_owner_reads() {
    let (scene, directory) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = token_file(Some(&directory.path().join("runs.db")), "unused".as_ref());
    assert_eq!(path, directory.path().join("runs.db.admin-token"));
    let first = scene.access.bootstrap(&scene.root, &path, None).await.unwrap();
    assert_eq!(first.token_file.as_deref(), Some(path.as_path()));
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    let who = scene.shows(&read(&path)).await.unwrap();
    assert_eq!((who.principal, who.role), (Principal::person("user:admin"), Role::Admin));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(scene.access.bootstrap(&scene.root, &path, None).await.unwrap(), Bootstrapped::default());
    assert!(!path.exists(), "once is enough");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "and nothing is left lying about");
    let who = Who { role: Role::Operator, ..scene.root.clone() };
    assert!(scene.access.bootstrap(&who, &path, None).await.is_err());
}

#[tokio::test]
async fn a_start_that_was_killed_before_the_store_knew_goes_on_with_the_same_token() {
    let (scene, directory) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = directory.path().join("token");
    scene.store.fail_next(Op::PutRecords, How::Before);
    scene.access.bootstrap(&scene.root, &path, None).await.unwrap_err();
    let written = read(&path);
    assert_eq!(scene.shows(&written).await, None);
    assert!(scene.access.bootstrap(&scene.root, &path, None).await.unwrap().token_file.is_some());
    assert!(scene.shows(&written).await.is_some());
}

#[tokio::test]
async fn a_file_that_somebody_else_may_have_written_is_not_taken() {
    let (scene, directory) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = directory.path().join("token");
    let refused = async || {
        let error = scene.access.bootstrap(&scene.root, &path, None).await.unwrap_err();
        assert!(matches!(error, BootstrapError::File { .. }), "{error}");
        assert_eq!(scene.access.users(None, 9).await.unwrap().items, []);
        error.to_string()
    };
    let token = format!("lh_{}", "x".repeat(43));
    std::fs::write(&path, &token).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(!refused().await.contains(&token));
    std::fs::write(&path, "something else").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    refused().await;
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(directory.path().join("elsewhere"), &path).unwrap();
    refused().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_several_first_starts_all_name_a_token_that_lets_in_or_none() {
    for shared in [true, false] {
        let (scene, directory) = (Scene::new(), tempfile::tempdir().unwrap());
        let mut all = Vec::new();
        for n in 0..8 {
            let path = directory.path().join(if shared { "token".to_owned() } else { format!("token{n}") });
            let (access, root) = (scene.access.clone(), scene.root.clone());
            all.push(tokio::spawn(async move { access.bootstrap(&root, &path, None).await.unwrap() }));
        }
        let mut named = Vec::new();
        for one in all {
            named.extend(one.await.unwrap().token_file);
        }
        assert!(!named.is_empty());
        let left = std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().path());
        for path in named.into_iter().chain(left) {
            assert!(scene.shows(&read(&path)).await.is_some(), "{}", path.display());
        }
        assert_eq!(scene.store.records("token", None, 9).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn the_operators_own_token_is_taken_and_taken_again_and_a_weak_one_is_not() {
    let (scene, directory) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = directory.path().join("token");
    let chosen = SecretString::from("0123456789abcdef".repeat(2));
    let start = async |chosen: &SecretString| scene.access.bootstrap(&scene.root, &path, Some(chosen)).await;
    let weak = SecretString::from("x".repeat(31));
    let error = start(&weak).await.unwrap_err().to_string();
    assert!(error.contains("32 to 512") && !error.contains(weak.expose_secret()), "{error}");
    start(&"with a blank ".repeat(4).into()).await.unwrap_err();
    start(&"x".repeat(513).into()).await.unwrap_err();
    assert_eq!(start(&chosen).await.unwrap(), Bootstrapped { token_file: None, registered: true });
    assert!(!path.exists());
    assert_eq!(scene.shows(&chosen).await.unwrap().role, Role::Admin);
    assert!(!start(&chosen).await.unwrap().registered);
    let token = scene.access.tokens(None, 9).await.unwrap().items.remove(0);
    scene.access.revoke_token(&scene.root, &token.id).await.unwrap();
    assert_eq!(scene.shows(&chosen).await, None);
    assert!(start(&chosen).await.unwrap().registered);
    assert!(scene.shows(&chosen).await.is_some());
    let other = SecretString::from("fedcba9876543210".repeat(2));
    assert!(start(&other).await.unwrap().registered);
    assert!(scene.shows(&other).await.is_some());
    scene.disable("admin", true).await;
    start(&other).await.unwrap();
    assert_eq!(scene.shows(&other).await, None);
}

#[test]
fn without_a_store_file_the_token_is_in_the_data_directory() {
    assert_eq!(token_file(None, "data".as_ref()), std::path::Path::new("data/admin-token"));
}
