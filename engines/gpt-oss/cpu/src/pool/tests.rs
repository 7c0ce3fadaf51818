use super::*;

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        for tasks in [0, 1, 2, 3, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, |i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                "{threads} threads, {tasks} tasks"
            );
        }
    }
}

#[test]
fn thousands_of_tiny_jobs_end() {
    let pool = Pool::new(4).unwrap();
    let sum = AtomicUsize::new(0);
    for _ in 0..5_000 {
        pool.run(3, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
    }
    assert_eq!(sum.load(Ordering::Relaxed), 15_000);
}

#[test]
fn tiles_cover_the_array() {
    let pool = Pool::new(3).unwrap();
    let (rows, width) = (7, 13);
    let mut out = vec![-1.0; rows * width];
    pool.tiles(&mut out, width, &[2, 2, 7], 5, |tile| {
        let (group, columns) = (tile.group(), tile.columns());
        for row in tile.rows() {
            for (column, out) in columns.clone().zip(tile.row(row)) {
                assert_eq!(*out, -1.0, "written twice");
                *out = (group * 1000 + row * width + column) as f32;
            }
        }
    });
    for (i, value) in out.iter().enumerate() {
        let group = if i / width < 2 { 0 } else { 2 };
        assert_eq!(*value, (group * 1000 + i) as f32);
    }
}

#[test]
#[should_panic(expected = "another tile")]
fn a_tile_has_its_own_rows_only() {
    Pool::new(1).unwrap().tiles(&mut [0.0; 4], 2, &[1, 2], 2, |tile| {
        tile.row(1 - tile.group());
    });
}

#[test]
fn a_panic_in_a_task_comes_out_and_the_pool_goes_on() {
    let pool = Pool::new(3).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| pool.run(100, |i| assert!(i != 57, "task 57"))));
    let payload = result.unwrap_err();
    assert!(payload.downcast_ref::<&str>().is_some_and(|s| s.contains("task 57")));
    let count = AtomicUsize::new(0);
    pool.run(10, |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(count.load(Ordering::Relaxed), 10);
}

#[test]
fn work_after_everybody_fell_asleep_is_done() {
    let pool = Pool::new(4).unwrap();
    let sum = AtomicUsize::new(0);
    for _ in 0..20 {
        while pool.shared.sleeping.load(Ordering::SeqCst) < 3 {
            std::thread::yield_now();
        }
        pool.run(8, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
    }
    assert_eq!(sum.load(Ordering::Relaxed), 20 * 28);
}

#[test]
fn a_caller_that_waits_long_sleeps_and_is_woken() {
    let pool = Pool::new(2).unwrap();
    let caller = std::thread::current().id();
    for _ in 0..5 {
        let both = std::sync::Barrier::new(2);
        pool.run(2, |_| {
            both.wait();
            // The other thread ends only once the caller has fallen asleep.
            while std::thread::current().id() != caller && !pool.shared.caller_sleeps.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
    }
}

#[cfg(target_os = "linux")]
#[test]
fn pinned_threads_stay_and_the_caller_is_let_go() {
    let before = affinity::allowed_by_core();
    let pool = Pool::pinned(before.len()).unwrap();
    assert!(pool.is_pinned());
    let entered = pool.enter();
    assert_eq!(affinity::allowed_by_core(), before[..1]);
    let seen = Mutex::new(Vec::new());
    let all = std::sync::Barrier::new(before.len());
    pool.run(before.len(), |_| {
        all.wait();
        lock(&seen).extend(affinity::allowed_by_core());
    });
    let mut seen = lock(&seen).clone();
    seen.sort_unstable();
    let mut expected = before.clone();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    drop(entered);
    assert_eq!(affinity::allowed_by_core(), before);
    assert!(!Pool::pinned(before.len() + 1).unwrap().is_pinned(), "two threads do not share a processor");
}
