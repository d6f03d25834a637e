//! Groups within groups, arguments that do not fit, and handles of work.

use std::sync::Arc;
use std::time::Duration;

use thalweg_dist::ReduceOp::{Avg, Sum};
use thalweg_dist::store::HashStore;
use thalweg_dist::{GroupOptions, ProcessGroup, Work, run_ranks, run_ranks_with, simulated_devices};
use thalweg_driver::{Code, CommunicatorHandle, Driver};
use thalweg_ir::DType;
use thalweg_memory::PoolOptions;
use thalweg_runtime::{Device, Environment, Error, MemPool, Result};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;

use crate::support::{checked, empty, tensor};

#[test]
fn groups_of_some_ranks_work_beside_each_other() {
    run_ranks(&simulated_devices(4).unwrap(), |world| {
        let evens = world.new_group(&[2, 0])?;
        let odds = world.new_group(&[1, 3])?;
        assert_eq!(evens.is_some(), world.rank() % 2 == 0);
        let group = evens.or(odds).expect("each rank is in one of them");
        // In the order of the list.
        assert_eq!(group.rank(), [1, 0, 0, 1][world.rank() as usize]);
        assert_eq!(group.global_ranks(), [[2, 0], [1, 3]][world.rank() as usize % 2]);
        let x = tensor(&group, &[10.0 * world.rank() as f32])?;
        group.broadcast(&x, 0)?.wait()?;
        assert_eq!(x.item::<f32>()?, [20.0, 10.0, 20.0, 10.0][world.rank() as usize]);

        // A group within the group knows its ranks in the world.
        let inner = group.new_group(&[1])?;
        if let Some(inner) = inner {
            assert_eq!(inner.global_ranks(), [world.rank()]);
            inner.all_reduce(&x, Sum)?.wait()?;
            assert!([0, 3].contains(&world.rank()));
        }

        let color = [Some(7), None, Some(7), Some(9)][world.rank() as usize];
        let part = world.split(color, -(world.rank() as i32))?;
        let seen = part.map(|part| (part.rank(), part.global_ranks().to_vec()));
        let wanted = [Some((1, vec![2, 0])), None, Some((0, vec![2, 0])), Some((0, vec![3]))];
        assert_eq!(seen, wanted[world.rank() as usize]);
        Ok(())
    })
    .unwrap();
}

fn groups_in_turn(world: &ProcessGroup, _: u64) -> Result<()> {
    let pair = world.new_group(&[0, 1])?;
    let x = tensor(world, &[1.0, world.rank() as f32])?;
    for _ in 0..2 {
        world.all_reduce(&x, Sum)?.wait()?;
        if let Some(pair) = &pair {
            pair.all_reduce(&x, Avg)?.wait()?;
        }
        world.barrier()?;
    }
    drop(x.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn groups_that_take_turns_are_no_deadlock() {
    checked(30, 3, groups_in_turn);
}

/// Returns calls with invalid arguments, and their error messages.
fn wrong_calls(group: &ProcessGroup, x: &Tensor) -> Result<Vec<(Result<Work>, &'static str)>> {
    let device = group.device();
    let whole = Tensor::zeros(&[4], DType::I32, device)?;
    let short = Tensor::zeros(&[2], DType::I16, device)?;
    let small = Tensor::zeros(&[2], DType::F8E4m3, device)?;
    let bools = Tensor::zeros(&[2], DType::Bool, device)?;
    let matrix = Tensor::zeros(&[2, 2], DType::F32, device)?;
    let turned = Tensor::zeros(&[2, 3], DType::F32, device)?.transpose(0, 1)?;
    let own = group.rank();
    let elsewhere = Tensor::zeros(&[2], DType::F32, &simulated_devices(1)?[0])?;
    Ok(vec![
        (group.all_reduce(&turned, Sum), "Tensors must be contiguous"),
        (group.all_reduce(&short, Sum), "data type is not supported for NCCL process group: int16"),
        (group.all_reduce(&small, Sum), "Unsupported Float8 type for NCCL reduction"),
        (group.all_reduce(&bools, Avg), "Cannot use ReduceOp.AVG with boolean inputs"),
        (group.all_reduce(&elsewhere, Sum), "Tensor found on device sim:0"),
        (group.broadcast(x, 2), "rank 2 is not part of a group of 2 ranks"),
        (group.reduce(x, 9, Sum), "rank 9 is not part of a group of 2 ranks"),
        (group.send(x, own), "destination rank should not be the same as the rank of the current process"),
        (group.recv(x, own), "source rank should not be the same"),
        (
            group.all_gather_into_tensor(x, x),
            "output tensor size must be equal to world_size times input tensor size",
        ),
        (
            group.all_gather_into_tensor(&whole, &matrix),
            "output tensor must have the same type as input tensor",
        ),
        (group.all_gather(std::slice::from_ref(x), x), "must match number of collective participants"),
        (
            group.reduce_scatter_tensor(x, x, Sum),
            "input tensor must be the same size as output size times world size",
        ),
        (group.all_to_all_single(x, x, Some(&[1, 2]), None), "Split sizes doesn't match total dim 0 size"),
        (group.all_to_all_single(x, x, Some(&[4]), None), "Number of tensor splits not equal to group size"),
        (
            group.all_to_all_single(&tensor(group, &[1.0; 3])?, x, None, None),
            "does not divide equally across group size",
        ),
        (group.gather(x, None, own), "Argument `gather_list` must be specified on dst rank"),
        (
            group.scatter(x, Some(&[x.clone(), x.clone()]), 1 - own),
            "Argument `scatter_list` must NOT be specified on non-src ranks",
        ),
        (group.scatter(x, Some(&[x.clone(), matrix.narrow(0, 0, 1)?]), own), "same number of elements"),
    ])
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_submitted() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = tensor(&group, &[1.0, 2.0, 3.0, 4.0])?;
        let small = Tensor::zeros(&[2], DType::F8E4m3, group.device())?;
        for (result, wanted) in wrong_calls(&group, &x)? {
            let error: Error = result.expect_err(wanted);
            assert!(error.is_invalid_argument(), "{error}");
            assert!(error.to_string().contains(wanted), "{error}, not {wanted}");
            assert!(error.to_string().contains("groups.rs"), "the line is named: {error}");
        }
        assert!(group.new_group(&[0, 2]).unwrap_err().to_string().contains("within the world_size"));
        assert!(group.new_group(&[0, 0]).unwrap_err().to_string().contains("should be unique"));
        // Nothing was left behind: the ranks are in step.
        group.all_reduce(&x, Sum)?.wait()?;
        assert_eq!(x.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
        // Bytes that are only moved have no arithmetic that could be missing.
        group.broadcast(&small, 0)?.wait()
    })
    .unwrap();
    let device = simulated_devices(1).unwrap().remove(0);
    let made = ProcessGroup::new(Arc::new(HashStore::new()), 2, 2, &device, GroupOptions::default());
    assert!(made.unwrap_err().to_string().contains("rank 2 is not in a world of 2 ranks"));
}

#[test]
fn groups_of_other_ranks_are_told_apart() {
    let error = run_ranks(&simulated_devices(3).unwrap(), |world| {
        let ranks: &[u32] = if world.rank() == 1 { &[0, 1] } else { &[0, 1, 2] };
        world.new_group(ranks)?.map_or(Ok(()), |group| group.barrier())
    })
    .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("[0, 1]")
            && text.contains("[0, 1, 2]")
            && text.contains("same calls in the same order"),
        "{text}"
    );
}

#[test]
fn writes_are_seen_by_autograd() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = tensor(&group, &[2.0])?.requires_grad_()?;
        let weight = tensor(&group, &[3.0])?;
        let y = x.mul(&weight)?;
        group.all_reduce(&weight, Sum)?.wait()?;
        let error = y.backward().unwrap_err();
        assert!(error.to_string().contains("modified by an inplace operation"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn work_can_be_asked_and_waited_for() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = empty(&group, 3)?;
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        let work = group.all_reduce(&x, Sum)?;
        if group.rank() == 0 {
            // The other rank may not have come yet, or it may have: the wait ends in any case.
            work.wait_for(Duration::from_secs(60))?;
        }
        work.synchronize()?;
        assert!(work.is_completed()?);
        let record = group.flight_record();
        assert!(record.contains("call 1 is all_reduce at") && record.contains("groups.rs"), "{record}");
        assert_eq!(x.to_vec::<f32>()?, [-2.0; 3]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn who_does_not_come_is_named_by_a_wait() {
    let both_know = std::sync::Barrier::new(3);
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let x = empty(&group, 3)?;
        group.all_reduce(&x, Sum)?.wait()?;
        if group.rank() == 2 {
            both_know.wait();
            return group.broadcast(&x, 0)?.synchronize();
        }
        let work = group.broadcast(&x, 0)?;
        let error = work.wait_for(Duration::from_millis(200)).unwrap_err();
        both_know.wait();
        let text = error.to_string();
        assert!(error.is_distributed() && text.contains("waited 200 ms for"), "{text}");
        assert!(text.contains("Rank 2 has made 1 of 2 calls; its last is all_reduce"), "{text}");
        work.synchronize()
    })
    .unwrap();
}

#[test]
fn the_watchdog_ends_what_would_wait_for_ever() {
    let options =
        GroupOptions { timeout: Duration::from_millis(300), watchdog: Some(true), ..GroupOptions::default() };
    let others_know = std::sync::Barrier::new(3);
    run_ranks_with(&simulated_devices(3).unwrap(), &options, |group| {
        let x = empty(&group, 3)?;
        group.all_reduce(&x, Sum)?.synchronize()?;
        if group.rank() < 2 {
            // Nothing but the watchdog ends this.
            group.broadcast(&x, 0)?.wait()?;
            let error = x.to_vec::<f32>().unwrap_err();
            assert!(error.is_device_lost(), "{error}");
        }
        others_know.wait();
        // All learn of it, also ranks that never waited.
        let begin = std::time::Instant::now();
        let error = loop {
            match group.flight_record().len() {
                0 => unreachable!("a call was made"),
                _ if begin.elapsed() > Duration::from_secs(20) => panic!("the watchdog says nothing"),
                _ => {}
            }
            match group.check() {
                Ok(()) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => break error,
            }
        };
        let text = error.to_string();
        assert!(text.contains("watchdog caught collective operation timeout: rank"), "{text}");
        assert!(text.contains("Rank 2 has made 1 of 2 calls"), "{text}");
        assert!(text.contains("The last calls of this rank:"), "{text}");
        // Each rank says its last calls: rank 2 has not made the second.
        let records = loop {
            let records: Option<Vec<String>> = group.flight_records()?.into_iter().collect();
            match records {
                Some(records) => break records,
                None if begin.elapsed() > Duration::from_secs(20) => panic!("a rank says nothing"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let calls: Vec<usize> = records.iter().map(|record| record.lines().count()).collect();
        assert_eq!(calls, [2, 2, 1], "{records:?}");
        assert!(records[0].contains("call 2 is broadcast"), "{records:?}");
        assert!(group.all_reduce(&x, Sum).unwrap_err().is_distributed());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_rank_that_fails_takes_the_others_along() {
    let options = GroupOptions { watchdog: Some(true), ..GroupOptions::default() };
    let error = run_ranks_with(&simulated_devices(3).unwrap(), &options, |group| {
        let x = empty(&group, 3)?;
        if group.rank() == 1 {
            return Err(Error::invalid("the disk is full"));
        }
        group.all_reduce(&x, Sum)?.wait()?;
        x.to_vec::<f32>()
    })
    .unwrap_err();
    assert!(error.to_string().starts_with("rank 1: the disk is full"), "{error}");
}

#[test]
fn ranks_that_are_all_gone_leave_no_work_behind() {
    let options = GroupOptions { watchdog: Some(false), ..GroupOptions::default() };
    let are_gone = std::sync::Barrier::new(2);
    run_ranks_with(&simulated_devices(2).unwrap(), &options, |world| {
        let other = world.new_group(&[0, 1])?.expect("both are in it");
        let x = empty(&world, 3)?;
        if world.rank() == 0 {
            // This call follows one that rank 1 does not make.
            other.all_reduce(&x, Sum)?.wait()?;
            world.all_reduce(&x, Sum)?.wait()?;
        }
        are_gone.wait();
        world.abort("the end")?;
        are_gone.wait();
        other.abort("the end")?;
        if world.rank() == 0 {
            assert!(world.device().synchronize().unwrap_err().is_device_lost());
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let store = Arc::new(HashStore::with_timeout(Duration::from_millis(200)));
    let devices = simulated_devices(3).unwrap();
    std::thread::scope(|scope| {
        let joins = [0, 2].map(|rank| {
            let (store, device) = (store.clone(), &devices[rank as usize]);
            scope.spawn(move || ProcessGroup::new(store, rank, 3, device, GroupOptions::default()))
        });
        for join in joins {
            let error = join.join().unwrap().unwrap_err();
            let text = error.to_string();
            assert!(error.is_distributed() && text.contains("[1] did not come within 200 ms"), "{text}");
        }
    });
}

/// A simulated machine whose library is too old to split communicators.
#[derive(Debug)]
struct WithoutSplit(Arc<SimDriver>);

impl Driver for WithoutSplit {
    thalweg_driver::wraps!(0);

    fn communicator_split(
        &self,
        _: CommunicatorHandle,
        _: &[u32],
    ) -> thalweg_driver::Result<Option<CommunicatorHandle>> {
        Err(thalweg_driver::Error::new(Code::NotSupported, "ncclCommSplit", "NCCL 2.17.1 has no split"))
    }
}

#[test]
fn without_splits_groups_have_communicators_of_their_own() {
    let driver = WithoutSplit(SimDriver::new(SimConfig { devices: 3, ..SimConfig::default() }).unwrap());
    let devices = Device::all_of(Arc::new(driver), Environment::get()).unwrap();
    run_ranks(&devices, |world| {
        let pair = world.new_group(&[2, 0])?;
        let alone = world.split((world.rank() == 1).then_some(0), 0)?;
        let group = pair.or(alone).expect("each rank is in one of them");
        assert_eq!(group.global_ranks(), if world.rank() == 1 { &[1][..] } else { &[2, 0] });
        let x = tensor(&group, &[1.0 + world.rank() as f32])?;
        group.all_reduce(&x, Sum)?.wait()?;
        assert_eq!(x.item::<f32>()?, [4.0, 2.0, 4.0][world.rank() as usize]);
        Ok(())
    })
    .unwrap();
}

/// Returns why the driver does not free the memory that a tensor is in.
fn refusal_of_free(x: &Tensor) -> String {
    let driver = x.device().driver();
    let (start, _) = driver.address_range(x.pointer()).unwrap();
    driver.memory_free(start).unwrap_err().to_string()
}

#[test]
fn memory_of_a_pool_is_registered_with_groups() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let pool = MemPool::for_collectives(group.device(), PoolOptions::default());
        let scope = pool.enter()?;
        let before = tensor(&group, &[1.0, 2.0])?;
        group.register_mem_pool(&pool, false)?;
        // Of another size, so that a segment of its own comes after the registration.
        let after = Tensor::full(&[8 << 20], 1.0, DType::F32, group.device())?;
        drop(scope);
        for x in [&before, &after] {
            let text = refusal_of_free(x);
            assert!(text.contains("register_mem_pool at") && text.contains("groups.rs"), "{text}");
            group.all_reduce(x, Sum)?.wait()?;
        }
        assert_eq!(before.to_vec::<f32>()?, [2.0, 4.0]);
        let error = group.register_mem_pool(&pool, false).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("registered with this"), "{error}");
        // Freed memory is deregistered; otherwise the driver would refuse.
        let reserved = group.device().memory_reserved();
        drop(after);
        group.device().synchronize()?;
        group.device().allocator().empty_pool_cache(pool.id()).unwrap();
        assert!(group.device().memory_reserved() < reserved);

        let pair = group.new_group(&[0, 1])?.expect("both are in it");
        pair.register_mem_pool(&pool, false)?;
        group.deregister_mem_pool(&pool)?;
        assert!(refusal_of_free(&before).contains("register_mem_pool at"), "the other group has it");
        let error = group.deregister_mem_pool(&pool).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("is not registered"), "{error}");
        let plain = MemPool::new(group.device(), PoolOptions::default());
        let error = group.register_mem_pool(&plain, false).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("for_collectives"), "{error}");
        // The group takes its registrations along; then the pool's memory goes.
        drop(pair);
        let reserved = group.device().memory_reserved();
        drop((before, pool));
        group.device().synchronize()?;
        group.device().empty_cache()?;
        assert!(group.device().memory_reserved() < reserved);
        Ok(())
    })
    .unwrap();
}

#[test]
fn symmetric_memory_is_registered_by_all_ranks() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let pool = MemPool::for_collectives(group.device(), PoolOptions::default());
        let scope = pool.enter()?;
        let x = Tensor::full(&[1 << 20], 1.0 + group.rank() as f32, DType::F32, group.device())?;
        group.register_mem_pool(&pool, true)?;
        let text = refusal_of_free(&x);
        assert!(text.contains("register_mem_pool at") && text.contains("groups.rs"), "{text}");
        group.all_reduce(&x, Sum)?.wait()?;
        assert_eq!(x.to_vec::<f32>()?[..2], [3.0, 3.0]);
        // What comes later is not, until the next call.
        let later = Tensor::full(&[8 << 20], 1.0, DType::F32, group.device())?;
        group.register_mem_pool(&pool, true)?;
        assert!(refusal_of_free(&later).contains("register_mem_pool at"));
        let error = group.register_mem_pool(&pool, false).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("registered with this"), "{error}");
        // Freed memory is deregistered; otherwise the driver would refuse.
        let reserved = group.device().memory_reserved();
        drop(later);
        group.device().synchronize()?;
        group.device().allocator().empty_pool_cache(pool.id()).unwrap();
        assert!(group.device().memory_reserved() < reserved);
        group.deregister_mem_pool(&pool)?;

        // Pools that differ.
        let _more = (group.rank() == 1)
            .then(|| Tensor::full(&[8 << 20], 1.0, DType::F32, group.device()))
            .transpose()?;
        drop(scope);
        let error = group.register_mem_pool(&pool, true).unwrap_err();
        assert!(error.is_distributed(), "{error}");
        let text = error.to_string();
        let wanted = [
            "register_mem_pool: rank 1 of the group \"world\" registers segments of",
            ", and rank 0 registers",
        ];
        assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_rank_that_does_not_come_is_named_by_all_errors() {
    let options =
        GroupOptions { timeout: Duration::from_millis(300), watchdog: Some(true), ..GroupOptions::default() };
    let all_know = std::sync::Barrier::new(4);
    let failed = run_ranks_with(&simulated_devices(4).unwrap(), &options, |group| {
        let x = empty(&group, 3)?;
        group.all_reduce(&x, Sum)?.synchronize()?;
        if group.rank() == 2 {
            all_know.wait();
            return Ok(());
        }
        group.all_reduce(&x, Sum)?.wait()?;
        let waited = group.device().synchronize();
        // What one rank has said, those of its process know at once.
        let known = group.check();
        all_know.wait();
        let text = waited.as_ref().unwrap_err().to_string();
        assert!(text.contains("for rank 2, which has not made this call"), "{text}");
        assert!(known.unwrap_err().to_string().contains("Rank 2 has made 1 of 2 calls"));
        waited
    })
    .unwrap_err();
    let text = failed.to_string();
    assert!(text.contains("Rank 2 has made 1 of 2 calls"), "{text}");
}

#[test]
fn a_rank_that_cannot_join_ends_the_group_of_the_others() {
    let device = simulated_devices(1).unwrap().remove(0);
    let error = run_ranks(&[device.clone(), device], |group| group.barrier()).unwrap_err().to_string();
    assert!(error.contains("each device has one rank"), "{error}");
}
