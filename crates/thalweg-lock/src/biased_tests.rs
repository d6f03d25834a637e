//! Tests of [`BiasedMutex`](super::BiasedMutex), with real threads and with the model checker.

use super::*;

#[cfg(not(loom))]
mod plain {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;

    use super::*;

    fn is_owned<T>(mutex: &BiasedMutex<T>) -> bool {
        mutex.owner.load(Relaxed).wrapping_sub(token::get()) < FLAGS as u64
    }

    fn elsewhere<R: Send>(run: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| scope.spawn(run).join().expect("it does not panic"))
    }

    #[test]
    fn the_first_to_come_owns_it_and_another_takes_it_away() {
        let mutex = BiasedMutex::new(0);
        *mutex.lock() += 1;
        assert_eq!(is_owned(&mutex), barrier::is_available());
        elsewhere(|| {
            *mutex.lock() += 1;
            assert!(!is_owned(&mutex), "one visit does not move a bias");
        });
        assert!(!is_owned(&mutex));
        assert_eq!(*mutex.lock(), 2);
    }

    #[test]
    fn a_bias_follows_a_thread_that_stays_and_each_takes_twice_as_long() {
        if !barrier::is_available() {
            println!("skipped: there is no heavy barrier here");
            return;
        }
        let mutex = BiasedMutex::new(());
        drop(mutex.lock());
        for turn in 0..4 {
            elsewhere(|| {
                let wanted = FIRST_STREAK << turn;
                for _ in 0..wanted {
                    drop(mutex.lock());
                }
                assert!(!is_owned(&mutex), "turn {turn}: not yet");
                drop(mutex.lock());
                assert!(is_owned(&mutex), "turn {turn}: now");
                assert!(mutex.try_lock().is_some());
            });
        }
        let shared = mutex.shared.lock();
        assert_eq!((shared.granted, shared.bias), (5, Bias::Standing));
    }

    #[test]
    fn after_the_last_bias_it_is_an_ordinary_mutex() {
        let mutex = BiasedMutex::new(0u64);
        mutex.shared.lock().granted = FLAGS;
        for _ in 0..10 * FIRST_STREAK {
            *mutex.lock() += 1;
        }
        assert!(!is_owned(&mutex));
        assert_eq!(*mutex.lock(), 10 * FIRST_STREAK);
    }

    #[test]
    fn who_is_inside_is_not_let_in_again() {
        let mutex = BiasedMutex::new(0);
        let guard = mutex.lock();
        assert!(mutex.try_lock().is_none());
        if barrier::is_available() {
            let again = catch_unwind(AssertUnwindSafe(|| drop(mutex.lock())));
            assert!(again.is_err(), "a second lock by the owner is a bug that is seen");
        }
        drop(guard);
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn a_try_that_finds_the_owner_inside_fails_and_so_does_the_next() {
        let mutex = BiasedMutex::new(0);
        let guard = mutex.lock();
        for _ in 0..3 {
            assert!(elsewhere(|| mutex.try_lock().is_none()));
        }
        // The bias is revoked, but the owner is still inside, and cannot enter twice.
        assert!(mutex.try_lock().is_none());
        drop(guard);
        assert!(elsewhere(|| mutex.try_lock().is_some()));
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn a_panic_inside_unlocks() {
        let mutex = BiasedMutex::new(0);
        for _ in 0..2 {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _guard = mutex.lock();
                panic!("inside");
            }));
            assert!(panicked.is_err());
            assert!(mutex.try_lock().is_some());
            // The second lock is by the ordinary mutex.
            elsewhere(|| drop(mutex.lock()));
        }
        assert_eq!(*mutex.lock(), 0);
    }

    #[test]
    fn the_mutex_of_a_thread_that_is_gone_is_free() {
        let mutex = BiasedMutex::new(1);
        elsewhere(|| *mutex.lock() += 1);
        assert_eq!(*mutex.lock(), 2);
    }

    /// Threads write two halves that are equal outside of the lock; their turns have very different lengths, so that biases are
    /// granted and revoked all the time.
    #[test]
    fn threads_that_come_and_go_never_meet_inside() {
        const THREADS: u64 = 4;
        let rounds = if cfg!(miri) { 20 } else { 400 };
        for mutexes in 0..if cfg!(miri) { 2 } else { 8 } {
            let mutex = BiasedMutex::new((mutexes, mutexes));
            let start = Barrier::new(THREADS as usize);
            let taken: u64 = std::thread::scope(|scope| {
                let visit = |thread: u64| {
                    let (mutex, start) = (&mutex, &start);
                    move || {
                        start.wait();
                        let mut taken = 0;
                        for round in 0..rounds {
                            let turns = if round % 7 == thread { 3 * FIRST_STREAK / 2 } else { round % 3 };
                            for turn in 0..turns {
                                let guard = if turn % 5 == 4 { mutex.try_lock() } else { Some(mutex.lock()) };
                                let Some(mut halves) = guard else { continue };
                                assert_eq!(halves.0, halves.1);
                                halves.0 += 1;
                                hint::black_box(&mut *halves);
                                halves.1 += 1;
                                taken += 1;
                            }
                            if round % 16 == 0 {
                                thread::yield_now();
                            }
                        }
                        taken
                    }
                };
                let handles: Vec<_> = (0..THREADS).map(|thread| scope.spawn(visit(thread))).collect();
                handles.into_iter().map(|handle| handle.join().expect("the halves are equal")).sum()
            });
            assert_eq!(*mutex.lock(), (mutexes + taken, mutexes + taken));
        }
    }
}

#[cfg(loom)]
mod loom_tests {
    use loom::model::Builder;
    use loom::sync::Arc;

    use super::*;

    fn check(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(run);
    }

    #[test]
    fn loom_the_owner_and_one_who_comes() {
        check(5, || {
            let mutex = Arc::new(BiasedMutex::new(0));
            *mutex.lock() += 1;
            let other = Arc::clone(&mutex);
            let handle = thread::spawn(move || *other.lock() += 1);
            *mutex.lock() += 1;
            *mutex.lock() += 1;
            handle.join().expect("no thread panics");
            assert_eq!(*mutex.lock(), 4);
        });
    }

    #[test]
    fn loom_a_bias_moves_while_the_old_owner_is_late() {
        // The other thread locks often enough to own the mutex, while this thread may be anywhere in its own attempt.
        check(5, || {
            let mutex = Arc::new(BiasedMutex::new(0));
            drop(mutex.lock());
            let other = Arc::clone(&mutex);
            let handle = thread::spawn(move || (0..3).for_each(|_| *other.lock() += 1));
            *mutex.lock() += 1;
            *mutex.lock() += 1;
            handle.join().expect("no thread panics");
            assert_eq!(*mutex.lock(), 5);
        });
    }

    #[test]
    fn loom_three_threads() {
        check(3, || {
            let mutex = Arc::new(BiasedMutex::new(0));
            drop(mutex.lock());
            let handles = [2, 1].map(|visits| {
                let other = Arc::clone(&mutex);
                thread::spawn(move || (0..visits).for_each(|_| *other.lock() += 1))
            });
            *mutex.lock() += 1;
            handles.into_iter().for_each(|handle| handle.join().expect("no thread panics"));
            assert_eq!(*mutex.lock(), 4);
        });
    }

    #[test]
    fn loom_who_tries_gets_in_alone_or_not_at_all() {
        check(5, || {
            let mutex = Arc::new(BiasedMutex::new(0));
            drop(mutex.lock());
            let other = Arc::clone(&mutex);
            let handle = thread::spawn(move || {
                let tried = (0..2).filter(|_| other.try_lock().map(|mut sum| *sum += 1).is_some()).count();
                *other.lock() += 1;
                tried + 1
            });
            let tried = mutex.try_lock().map(|mut sum| *sum += 1).is_some();
            *mutex.lock() += 1;
            let others = handle.join().expect("no thread panics");
            assert_eq!(*mutex.lock(), others + usize::from(tried) + 1);
        });
    }
}
