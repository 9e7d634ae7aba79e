//! The one thread that writes. It takes whatever waits while the previous commit flushes and commits it together: no timer, so an
//! idle store answers after one commit, and a busy one pays one flush for many callers. A caller is answered after the commit that
//! holds its change. A change that fails is undone alone; where it takes the whole transaction with it, the batch is repeated one by one,
//! so that only the culprit fails.

use super::{
    busy::{is_busy, patiently},
    change::{self, Change, Reply},
    place::Place,
    turns::Turns,
};
use crate::{
    clock::BootClock,
    limits::COMMIT_BATCH_MAX,
    store::{StoreRefused, Unavailable},
};
use rusqlite::{Connection, ErrorCode};
use std::{
    sync::{Arc, mpsc},
    thread,
};
use tokio::sync::oneshot;

/// What the thread receives. The queue has no bound of its own: each caller waits for its answer, so it is as long as callers are many.
struct Job {
    change: Change,
    reply: oneshot::Sender<Result<Reply, Unavailable>>,
}

/// The way to the thread; it ends with the last sender, after what was sent.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
    place: Arc<Place>,
}

/// Why a whole transaction failed.
enum Failure {
    /// Before its commit: nothing of it is there.
    Undone(rusqlite::Error),
    /// In its commit: it may be there.
    Commit(rusqlite::Error),
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(
        connection: Connection,
        clock: Arc<dyn BootClock>,
        turns: Arc<Turns>,
        place: Arc<Place>,
    ) -> std::io::Result<Self> {
        let (jobs, waiting) = mpsc::channel();
        let committer = Committer { connection, clock, turns, place: Arc::clone(&place) };
        thread::Builder::new().name("leasehold-writer".into()).spawn(move || committer.run(&waiting))?;
        Ok(Self { jobs, place })
    }

    /// Sends a change and waits for the commit that holds it.
    pub(super) async fn send(&self, change: Change) -> Result<Reply, Unavailable> {
        let (reply, answer) = oneshot::channel();
        let stopped = || Unavailable(format!("{}: the writer thread has stopped", self.place));
        self.jobs.send(Job { change, reply }).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

struct Committer {
    connection: Connection,
    clock: Arc<dyn BootClock>,
    turns: Arc<Turns>,
    place: Arc<Place>,
}

impl Committer {
    fn run(self, waiting: &mpsc::Receiver<Job>) {
        while let Ok(first) = waiting.recv() {
            let mut jobs = vec![first];
            jobs.extend(waiting.try_iter().take(COMMIT_BATCH_MAX - 1));
            self.commit(jobs);
        }
    }

    fn commit(&self, jobs: Vec<Job>) {
        if let Err(error) = self.place.check() {
            return refuse(jobs, &error);
        }
        match self.transact(&jobs) {
            Ok(replies) => {
                for (job, reply) in jobs.into_iter().zip(replies) {
                    // A caller that has gone does not want its answer.
                    job.reply.send(reply).ok();
                }
            }
            Err(Failure::Undone(_)) if jobs.len() > 1 => {
                for job in jobs {
                    self.commit(vec![job]);
                }
            }
            Err(Failure::Undone(error)) if !is_busy(&error) => self.refuse_all(jobs, &error),
            // The last thing that a commit writes is what makes it one: without room for all of it there is none.
            Err(Failure::Commit(error)) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
                self.refuse_all(jobs, &error);
            }
            Err(Failure::Undone(error) | Failure::Commit(error)) => {
                let error = self.place.unavailable(&error);
                refuse(jobs, &error);
            }
        }
    }

    fn refuse_all(&self, jobs: Vec<Job>, error: &rusqlite::Error) {
        for job in jobs {
            let answer = self.refused(&job, change::refused(&*self.place, error));
            // A caller that has gone does not want its answer.
            job.reply.send(answer).ok();
        }
    }

    fn refused(&self, job: &Job, refused: StoreRefused) -> Result<Reply, Unavailable> {
        tracing::error!("{refused}");
        job.change.refused(refused)
    }

    /// One transaction for all; begun again while another process has the file.
    fn transact(&self, jobs: &[Job]) -> Result<Vec<Result<Reply, Unavailable>>, Failure> {
        let mut in_commit = false;
        let done = patiently(|| {
            let _turn = self.turns.writer();
            in_commit = false;
            let done = self.all(jobs, &mut in_commit);
            if done.is_err() && !self.connection.is_autocommit() {
                self.connection.execute_batch("ROLLBACK")?;
            }
            done
        });
        done.map_err(|e| if in_commit { Failure::Commit(e) } else { Failure::Undone(e) })
    }

    fn all(&self, jobs: &[Job], in_commit: &mut bool) -> rusqlite::Result<Vec<Result<Reply, Unavailable>>> {
        let connection = &self.connection;
        run(connection, "BEGIN IMMEDIATE")?;
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs {
            let apply = || job.change.apply(connection, &*self.clock, &*self.place);
            let reply = change::alone(connection, "one", &*self.place, apply)?;
            replies.push(reply.or_else(|refused| self.refused(job, refused)));
        }
        *in_commit = true;
        run(connection, "COMMIT")?;
        Ok(replies)
    }
}

fn refuse(jobs: Vec<Job>, error: &Unavailable) {
    tracing::error!(changes = jobs.len(), "{error}");
    for job in jobs {
        // A caller that has gone does not want its answer.
        job.reply.send(Err(error.clone())).ok();
    }
}

fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}
