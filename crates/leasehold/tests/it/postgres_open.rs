//! Opening a PostgreSQL store: what is refused and how it is said, TLS, several hosts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::store::{
    Filter, Store as _,
    postgres::{OpenError, PostgresStore},
};
use leasehold_testkit::{
    fixture::{insert, queued},
    postgres::{Cluster, Database, Extra, Version},
};
use std::sync::Arc;

const PASSWORD: &str = "hunter2-of-the-tests";

async fn database() -> Database {
    Cluster::shared(Version::V15).database().await
}

/// Must fail; and whatever is said of it holds no password.
async fn refused(url: &str) -> OpenError {
    let error = PostgresStore::connect(url).await.expect_err("it opened");
    let said = format!("{error} {error:?}");
    assert!(!said.contains(PASSWORD), "{said}");
    error
}

/// Another user of this database, who needs a password.
async fn user(database: &Database, name: &str, more: &str) -> String {
    let name = format!("{name}_{}", database.name());
    let make = format!("CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}' {more}");
    database.execute(&make).await.unwrap();
    format!("postgres://{name}:{PASSWORD}@127.0.0.1:{}/{}", database.cluster().port(), database.name())
}

/// Roles belong to the server, not to the database.
async fn forget(database: &Database, name: &str) {
    let name = format!("{name}_{}", database.name());
    database.execute(&format!("DROP OWNED BY {name} CASCADE; DROP ROLE {name}")).await.unwrap();
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_unreachable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = refused(&format!("postgres://ada:{PASSWORD}@127.0.0.1:{port}/runs")).await;
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}/runs")), "{error}");
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_one_are_said() {
    let database = database().await;
    let right = user(&database, "ada", "").await;
    let wrong = right.replace(PASSWORD, "another");
    let error = refused(&wrong).await;
    assert!(matches!(error, OpenError::Refused { .. }), "{error:?}");
    assert!(!error.to_string().contains("another"), "{error}");
    let none = right.replace(&format!(":{PASSWORD}"), "");
    let error = refused(&none).await;
    assert!(matches!(error, OpenError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("none is given"), "{error}");
    forget(&database, "ada").await;
}

#[tokio::test]
async fn a_missing_database_is_said_with_the_command_that_makes_it() {
    let cluster = Cluster::shared(Version::V15);
    let error = refused(&cluster.url("nowhere")).await;
    assert!(matches!(&error, OpenError::NoDatabase { database, .. } if database == "nowhere"), "{error:?}");
    assert!(error.to_string().contains("createdb"), "{error}");
}

#[tokio::test]
async fn too_many_connections_are_said() {
    let database = database().await;
    let url = user(&database, "crowd", "CONNECTION LIMIT 0").await;
    let error = refused(&url).await;
    assert!(matches!(error, OpenError::TooManyConnections { .. }), "{error:?}");
    forget(&database, "crowd").await;
}

#[tokio::test]
async fn a_database_that_takes_no_writes_is_refused() {
    let database = database().await;
    let off = format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name());
    database.execute(&off).await.unwrap();
    for url in [database.url(), format!("{}?target_session_attrs=any", database.url())] {
        let error = refused(&url).await;
        assert!(matches!(error, OpenError::ReadOnly { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn an_encoding_that_would_change_text_is_refused() {
    let cluster = Cluster::shared(Version::V15);
    let name = format!("ascii_{}", std::process::id());
    let make = format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0");
    cluster.execute("postgres", &make).await.unwrap();
    let error = refused(&cluster.url(&name)).await;
    assert!(matches!(&error, OpenError::Encoding { encoding, .. } if encoding == "SQL_ASCII"), "{error:?}");
    cluster.execute("postgres", &format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let database = database().await;
    PostgresStore::connect(&database.url()).await.unwrap();
    database.execute("UPDATE refinery_schema_history SET version = 4711 WHERE version = 1").await.unwrap();
    let error = refused(&database.url()).await;
    assert!(matches!(error, OpenError::NewerSchema { found: 4711, .. }), "{error:?}");
}

#[tokio::test]
async fn who_may_not_make_the_schema_hears_so_and_may_use_one_that_is_there() {
    let database = database().await;
    let url = user(&database, "guest", "").await;
    let error = refused(&url).await;
    assert!(matches!(error, OpenError::MayNotMigrate { .. }), "{error:?}");
    PostgresStore::connect(&database.url()).await.unwrap();
    let name = format!("guest_{}", database.name());
    database.execute(&format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")).await.unwrap();
    let store = PostgresStore::connect(&url).await.unwrap();
    store.insert(insert(queued("a"))).await.unwrap();
    assert!(!format!("{store:?} {}", store.describe()).contains(PASSWORD));
    drop(store);
    forget(&database, "guest").await;
}

#[tokio::test]
async fn another_programs_tables_are_not_written_over() {
    let database = database().await;
    database.execute("CREATE TABLE runs (distance_km integer); INSERT INTO runs VALUES (42)").await.unwrap();
    let error = refused(&database.url()).await;
    assert!(matches!(error, OpenError::Migration { .. }), "{error:?}");
    let client = database.cluster().client(database.name()).await.unwrap();
    let km: i32 = client.query_one("SELECT distance_km FROM runs", &[]).await.unwrap().get(0);
    assert_eq!(km, 42);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_that_open_a_new_database_at_once_all_succeed() {
    let database = database().await;
    let opens: Vec<_> = (0..8)
        .map(|_| {
            let url = database.url();
            tokio::spawn(async move { PostgresStore::connect(&url).await.map_err(|e| e.to_string()) })
        })
        .collect();
    for open in opens {
        let store = open.await.unwrap().unwrap();
        store.insert(insert(queued("a"))).await.unwrap();
    }
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    assert_eq!(store.list(&Filter::default(), None, 100).await.unwrap().len(), 8);
}

#[tokio::test]
async fn of_several_hosts_the_one_that_answers_is_used() {
    let database = database().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port, name) = (database.cluster().port(), database.name().to_owned());
    for hosts in [format!("127.0.0.1:{closed},127.0.0.1:{port}"), format!("localhost:{port},127.0.0.1:{closed}")] {
        let store = PostgresStore::connect(&format!("postgres://leasehold@{hosts}/{name}")).await.unwrap();
        store.insert(insert(queued("a"))).await.unwrap();
        assert_eq!(store.describe(), format!("postgres://leasehold@{hosts}/{name}"));
    }
}

#[tokio::test]
async fn a_commit_is_synchronous_whatever_the_user_is_set_to() {
    let database = database().await;
    let url = user(&database, "hasty", "").await;
    let name = format!("hasty_{}", database.name());
    let grant = format!("ALTER ROLE {name} SET synchronous_commit = off; GRANT ALL ON SCHEMA public TO {name}");
    database.execute(&grant).await.unwrap();
    let store = PostgresStore::connect(&url).await.unwrap();
    // Tells what was in force in the session that wrote.
    let spy = "CREATE TABLE seen (setting text);
        CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
        $$ BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
        CREATE TRIGGER spy AFTER INSERT ON journal EXECUTE FUNCTION spy()";
    database.execute(spy).await.unwrap();
    let first = insert(leasehold_testkit::fixture::running("a"));
    store.insert(first.clone()).await.unwrap();
    let row = store.load(first.row.id).await.unwrap().unwrap();
    store.write(leasehold_testkit::fixture::record(&row, "step")).await.unwrap();
    let client = database.cluster().client(database.name()).await.unwrap();
    let seen = client.query("SELECT setting FROM seen", &[]).await.unwrap();
    assert_eq!(seen.iter().map(|r| r.get::<_, String>(0)).collect::<Vec<_>>(), ["on", "on"]);
    drop(store);
    forget(&database, "hasty").await;
}

#[tokio::test]
async fn a_host_that_takes_the_connection_and_is_silent_does_not_hide_the_next() {
    let database = database().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap().port();
    let (port, name) = (database.cluster().port(), database.name().to_owned());
    let hosts = format!("127.0.0.1:{silent},127.0.0.1:{port}");
    let url = format!("postgres://leasehold@{hosts}/{name}");
    let opened = tokio::time::timeout(std::time::Duration::from_secs(30), PostgresStore::connect(&url)).await;
    let store = opened.expect("it goes on to the next").unwrap();
    // Every kind of connection finds its way: the one that commits, those for the rest, and the one that renews.
    let first = insert(leasehold_testkit::fixture::running("a"));
    store.insert(first.clone()).await.unwrap();
    let row = store.load(first.row.id).await.unwrap().unwrap();
    store.write(leasehold_testkit::fixture::record(&row, "step")).await.unwrap();
    let held = leasehold::store::Held { id: row.id, epoch: row.epoch, lease_id: row.lease.unwrap().lease_id };
    let renewal = move || store.renewer().unwrap().renew(&[held], std::time::Duration::from_secs(60)).unwrap();
    assert!(tokio::task::spawn_blocking(renewal).await.unwrap()[0].renewed);
}

struct Authority {
    certificate: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

fn authority() -> Authority {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "an authority of the tests");
    let certificate = params.self_signed(&key).unwrap().pem();
    Authority { certificate, issuer: rcgen::Issuer::new(params, key) }
}

/// A server that takes TLS only, with a certificate for `localhost`. Debian's PostgreSQL: the packaged 18 is built without TLS.
fn tls_server(authority: &Authority) -> Arc<Cluster> {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority.issuer).unwrap().pem();
    let hba = "local all all trust\nhostssl all all 127.0.0.1/32 trust\nhostssl all all ::1/128 trust\n";
    let files = [("server.crt", certificate.as_str()), ("server.key", &key.serialize_pem()), ("pg_hba.conf", hba)];
    Cluster::own(Version::V15, Extra { settings: &["ssl = on"], files: &files, ..Extra::default() })
}

#[tokio::test]
async fn tls_is_verified_as_the_url_says() {
    let (authority, stranger) = (authority(), authority());
    let cluster = tokio::task::spawn_blocking(move || (tls_server(&authority), authority)).await.unwrap();
    let (cluster, authority) = cluster;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let ours = file("ours.pem", &authority.certificate);
    let theirs = file("theirs.pem", &stranger.certificate);
    let empty = file("empty.pem", "");
    let url = |host: &str, query: &str| format!("postgres://leasehold@{host}:{}/postgres?{query}", cluster.port());

    for (host, query) in [
        ("localhost", format!("sslmode=verify-full&sslrootcert={ours}")),
        ("localhost", format!("sslrootcert={ours}")),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={ours}")),
        ("127.0.0.1", format!("sslmode=require&sslrootcert={ours}")),
        ("127.0.0.1", "sslmode=require".to_owned()),
        ("127.0.0.1", "sslmode=prefer".to_owned()),
        ("127.0.0.1", "application_name=by-default".to_owned()),
    ] {
        let store = PostgresStore::connect(&url(host, &query)).await.unwrap_or_else(|e| panic!("{host} {query}: {e}"));
        store.insert(insert(queued("a"))).await.unwrap();
        // Renewals have a connection of their own.
        let held = leasehold::store::Held { id: queued("a").id, epoch: 1, lease_id: leasehold::run::LeaseId::random() };
        tokio::task::spawn_blocking(move || store.renewer().unwrap().look(&[held]).unwrap()).await.unwrap();
    }
    for (host, query) in [
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={ours}")),
        ("localhost", format!("sslmode=verify-full&sslrootcert={theirs}")),
        ("localhost", format!("sslmode=verify-ca&sslrootcert={theirs}")),
        ("localhost", format!("sslmode=require&sslrootcert={theirs}")),
        ("localhost", "sslmode=verify-full".to_owned()),
    ] {
        let error = refused(&url(host, &query)).await;
        assert!(matches!(error, OpenError::Tls { .. }), "{host} {query}: {error:?}");
    }
    let error = refused(&url("localhost", &format!("sslrootcert={empty}"))).await;
    assert!(matches!(error, OpenError::RootCertificate { .. }), "{error:?}");
    let error = refused(&url("127.0.0.1", "sslmode=disable")).await;
    assert!(matches!(error, OpenError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_without_tls_is_not_used_where_tls_is_asked_for() {
    let database = database().await;
    let error = refused(&format!("{}?sslmode=require", database.url())).await;
    assert!(matches!(error, OpenError::Tls { .. }), "{error:?}");
}
