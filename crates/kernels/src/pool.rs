//! Worker threads that claim tiles of work.
//!
//! A job is a number of tiles and a function of the tile's index. Each thread, the caller included, has a home range of tiles,
//! which it claims one by one, ascending: what it reads lies in one piece, and what it asks memory for ahead of time is what it
//! reads next. When its own are gone it takes the last ones of the others, so a busy neighbour or a slow core delays only the tile it
//! holds. Idle workers spin briefly (the next product of a forward pass is microseconds away), then sleep.

use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Spins before sleeping: some tens of microseconds.
const SPINS: u32 = 4000;

/// A fixed set of threads, the caller's included.
pub struct Pool {
    shared: Arc<State>,
    workers: Vec<JoinHandle<()>>,
    running: Mutex<()>,
}

struct State {
    /// The present job; its `epoch` counts jobs.
    job: Mutex<Job>,
    /// Wakes sleeping workers.
    wake: Condvar,
    /// Epoch of the present job, to spin on without the lock.
    epoch: Alone<AtomicU32>,
    /// What is unclaimed of each thread's home range.
    homes: Vec<Home>,
    /// Units of the present job that are finished.
    done: Alone<AtomicUsize>,
    /// Wakes the caller when the last unit is finished.
    finished: Condvar,
    panicked: AtomicBool,
}

/// A value in cache lines of its own, so that who writes to its neighbours does not take it from who waits for it.
#[repr(align(128))]
struct Alone<T>(T);

/// The unclaimed units of a home range, counted from its beginning: the job's epoch in the upper half, so that a late
/// worker cannot claim from a newer job, then 16 bits each for the first and for one past the last.
struct Home(Alone<AtomicU64>);

/// Units that a home can hold.
const HOME: usize = 0xffff;

#[derive(Clone, Copy)]
struct Job {
    epoch: u32,
    shares: Shares,
    task: Option<Task>,
    /// Workers that have to be woken.
    sleeping: usize,
    /// Whether the caller has to be.
    waiting: bool,
    stop: bool,
}

/// How tiles are shared out.
#[derive(Clone, Copy, Default)]
struct Shares {
    tiles: usize,
    threads: usize,
    /// Tiles of a unit, which is what a thread claims: one, unless there are more than homes can count.
    grain: usize,
}

impl Shares {
    fn new(tiles: usize, threads: usize) -> Self {
        Self { tiles, threads, grain: tiles.div_ceil(HOME * threads).max(1) }
    }

    fn units(self) -> usize {
        self.tiles.div_ceil(self.grain)
    }

    /// The units of a thread's home range.
    fn home(self, thread: usize) -> Range<usize> {
        self.units() * thread / self.threads..self.units() * (thread + 1) / self.threads
    }

    fn tiles_of(self, unit: usize) -> Range<usize> {
        unit * self.grain..self.tiles.min((unit + 1) * self.grain)
    }
}

impl Home {
    fn open(&self, epoch: u32, units: usize) {
        self.0.0.store(u64::from(epoch) << 32 | units as u64, Ordering::Release);
    }

    /// Claims the first unit, or the last one, of a job.
    fn claim(&self, epoch: u32, first: bool) -> Option<usize> {
        let mut now = self.0.0.load(Ordering::Acquire);
        loop {
            let (start, end) = (now >> 16 & 0xffff, now & 0xffff);
            if (now >> 32) as u32 != epoch || start >= end {
                return None;
            }
            let next = if first { now + (1 << 16) } else { now - 1 };
            match self.0.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(if first { start } else { end - 1 } as usize),
                Err(found) => now = found,
            }
        }
    }
}

/// A task whose lifetime `Pool::run` vouches for.
#[derive(Clone, Copy)]
struct Task(*const (dyn Fn(usize) + Sync));

// SAFETY: the pointee is `Sync`, and `Pool::run` keeps it alive until every claimed tile is done.
unsafe impl Send for Task {}

impl Pool {
    /// A pool of `threads` threads in all (at least one: the caller).
    pub fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        let shared = Arc::new(State {
            job: Mutex::new(Job {
                epoch: 0,
                shares: Shares::default(),
                task: None,
                sleeping: 0,
                waiting: false,
                stop: false,
            }),
            wake: Condvar::new(),
            epoch: Alone(AtomicU32::new(0)),
            homes: (0..threads).map(|_| Home(Alone(AtomicU64::new(0)))).collect(),
            done: Alone(AtomicUsize::new(0)),
            finished: Condvar::new(),
            panicked: AtomicBool::new(false),
        });
        let workers = (1..threads)
            .filter_map(|i| {
                let shared = Arc::clone(&shared);
                // A machine that refuses another thread runs with those it has: the numbers are the same.
                std::thread::Builder::new().name(format!("glimmer-{i}")).spawn(move || shared.work(i)).ok()
            })
            .collect();
        Self { shared, workers, running: Mutex::new(()) }
    }

    /// Threads that take part in a job.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The processor time that its threads have had, the caller included, for a difference that is taken by one caller; other systems than
    /// Linux (glibc) count those of the whole process. `None` where the system does not say.
    ///
    /// Linux knows of the other threads of a process what they had up to their last tick; up to now, only of one that it is asked for.
    pub fn cpu_time(&self) -> Option<Duration> {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            use std::os::unix::thread::JoinHandleExt;
            let clock_of = |worker: &JoinHandle<()>| {
                let mut clock = 0;
                // SAFETY: no worker is joined while the pool is borrowed, and the pointer is to a variable of this function.
                let got = unsafe { libc::pthread_getcpuclockid(worker.as_pthread_t(), &mut clock) };
                (got == 0).then_some(clock)
            };
            let mut clocks = self.workers.iter().map(clock_of);
            clocks.try_fold(read_clock(libc::CLOCK_THREAD_CPUTIME_ID)?, |all, clock| Some(all + read_clock(clock?)?))
        }
        #[cfg(all(unix, not(all(target_os = "linux", target_env = "gnu"))))]
        {
            read_clock(libc::CLOCK_PROCESS_CPUTIME_ID)
        }
        #[cfg(not(unix))]
        None
    }

    /// Calls `task` once for each tile in `0..tiles`, on all threads, and returns when all are done.
    ///
    /// A task must not call `run` of the same pool: it would wait for itself.
    ///
    /// # Panics
    /// If `task` panics on any thread.
    pub fn run(&self, tiles: usize, task: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || tiles <= 1 {
            return (0..tiles).for_each(task);
        }
        let _one_job_at_a_time = lock(&self.running);
        let state = &*self.shared;
        // Of threads that could not be started the homes are never opened.
        let shares = Shares::new(tiles, self.threads());
        let (epoch, sleeping) = {
            let mut job = lock(&state.job);
            let epoch = job.epoch.wrapping_add(1);
            // SAFETY: only the lifetime is erased. Workers call the task for units they claimed, and this function
            // returns only after as many units are done as there are, so none is running then; a worker
            // that comes later finds the epoch changed or no unit left, and does not touch the pointer.
            let task = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) };
            (job.epoch, job.shares, job.task) = (epoch, shares, Some(Task(task)));
            state.done.0.store(0, Ordering::Relaxed);
            for (thread, home) in state.homes.iter().enumerate().take(shares.threads) {
                home.open(epoch, shares.home(thread).len());
            }
            (epoch, job.sleeping)
        };
        // Workers that see it take the lock, which is free by now.
        state.epoch.0.store(epoch, Ordering::Release);
        if sleeping > 0 {
            state.wake.notify_all();
        }
        state.claim_all(0, epoch, shares, task);
        state.wait_until_done(shares.units());
        if state.panicked.swap(false, Ordering::AcqRel) {
            resume_unwind(Box::new("a worker thread panicked"));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let mut job = lock(&self.shared.job);
            job.stop = true;
            job.epoch = job.epoch.wrapping_add(1);
            self.shared.epoch.0.store(job.epoch, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked outside a task has nothing left to clean up.
            let _ = worker.join();
        }
    }
}

impl State {
    fn work(&self, thread: usize) {
        let mut seen = 0u32;
        loop {
            for _ in 0..SPINS {
                if self.epoch.0.load(Ordering::Acquire) != seen {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut job = lock(&self.job);
            while job.epoch == seen {
                job.sleeping += 1;
                job = self.wake.wait(job).unwrap_or_else(PoisonError::into_inner);
                job.sleeping -= 1;
            }
            let Job { epoch, shares, task, stop, .. } = *job;
            drop(job);
            if stop {
                return;
            }
            seen = epoch;
            if let Some(Task(task)) = task {
                // The pointer is dereferenced only inside `claim_all`, for units that were claimed.
                self.claim_all(thread, epoch, shares, &|tile| {
                    // SAFETY: the unit of this tile and epoch is claimed and not yet counted as done, so `Pool::run`
                    // still waits.
                    unsafe { (*task)(tile) }
                });
            }
        }
    }

    fn claim_all(&self, thread: usize, epoch: u32, shares: Shares, task: &dyn Fn(usize)) {
        for i in 0..shares.threads {
            let home = (thread + i) % shares.threads;
            while let Some(unit) = self.homes[home].claim(epoch, i == 0) {
                let tiles = shares.tiles_of(shares.home(home).start + unit);
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| tiles.for_each(task))) {
                    // Dropping what was thrown could throw again, while others still run the task.
                    std::mem::forget(payload);
                    self.panicked.store(true, Ordering::Release);
                }
                if self.done.0.fetch_add(1, Ordering::AcqRel) + 1 == shares.units() {
                    // Under the lock, a caller either sleeps by now or will see that all are done.
                    if lock(&self.job).waiting {
                        self.finished.notify_all();
                    }
                }
            }
        }
    }

    fn wait_until_done(&self, units: usize) {
        for _ in 0..SPINS {
            if self.done.0.load(Ordering::Acquire) == units {
                return;
            }
            std::hint::spin_loop();
        }
        let mut job = lock(&self.job);
        job.waiting = true;
        while self.done.0.load(Ordering::Acquire) != units {
            job = self.finished.wait(job).unwrap_or_else(PoisonError::into_inner);
        }
        job.waiting = false;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a clock of the system says.
#[cfg(unix)]
fn read_clock(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a variable of this function.
    let got = unsafe { libc::clock_gettime(clock, &mut time) };
    (got == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// A mutable slice that several threads write disjoint parts of.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: `slice` hands out parts only under the promise that no two overlap.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// A part of the slice.
    ///
    /// # Safety
    /// No two parts that are alive at the same time may overlap.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the borrowed slice by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn the_time_of_all_threads_is_counted() {
        let (pool, arrived, each) = (Pool::new(3), AtomicUsize::new(0), Mutex::new(Vec::new()));
        let own = || read_clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap();
        let before = pool.cpu_time().unwrap();
        // All wait for all, so each thread has a tile.
        pool.run(pool.threads(), &|_| {
            let began = own();
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < pool.threads() || own() < began + Duration::from_millis(20) {
                std::hint::spin_loop();
            }
            each.lock().unwrap().push(own() - began);
        });
        let (had, each) = (pool.cpu_time().unwrap() - before, each.into_inner().unwrap());
        assert!(each.len() == pool.threads() && had >= each.iter().sum(), "{had:?}, {each:?}");
    }

    #[test]
    fn every_tile_runs_once() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            for tiles in (0..200).chain([10_000, 400_001]) {
                let counts: Vec<AtomicUsize> = (0..tiles).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tiles, &|tile| {
                    counts[tile].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tiles} tiles");
            }
        }
    }

    #[test]
    fn callers_take_turns() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        pool.run(7, &|tile| {
                            total.fetch_add(tile, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 500 * 21);
    }

    #[test]
    fn a_payload_that_panics_when_dropped_does_no_harm() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let pool = Pool::new(2);
        let done = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|tile| {
                done.fetch_add(1, Ordering::Relaxed);
                if tile % 2 == 0 {
                    std::panic::panic_any(Bomb);
                }
            })
        }));
        assert!(result.is_err());
        assert_eq!(done.into_inner(), 100, "every tile ran before the caller came back");
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(50, &|tile| assert_ne!(tile, 31))));
        assert!(result.is_err());
        let total = AtomicUsize::new(0);
        pool.run(50, &|tile| {
            total.fetch_add(tile, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 49 * 50 / 2);
    }
}
