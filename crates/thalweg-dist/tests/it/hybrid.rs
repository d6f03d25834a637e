//! Parameters that are sharded along one dimension of a mesh and replicated along the other.

use thalweg_dist::{
    DeviceMesh, FullyShardOptions, ProcessGroup, fully_shard_on_mesh, run_ranks, simulated_devices,
};
use thalweg_nn::module::Module;
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_runtime::Result;
use thalweg_tensor::{Tensor, no_grad};

use crate::fully_shard::{Network, Sharded, alone, plain, step, whole};
use crate::support::{Folder, bytes, checked, close, descend, parameter_values};

fn mesh(world: &ProcessGroup, replicas: usize) -> Result<DeviceMesh> {
    DeviceMesh::new(world, &[replicas, world.size() as usize / replicas], &["replicate", "shard"])
}

/// Shards each block, and then the rest of the model. The initial values are those of rank 0.
fn made(world: &ProcessGroup, mesh: &DeviceMesh) -> Result<Sharded> {
    let Network { first, blocks, last } = plain(1 + u64::from(world.rank()), world.device())?;
    let options = FullyShardOptions::default();
    let blocks = blocks.into_iter().map(|block| fully_shard_on_mesh(block, mesh, options));
    let blocks = blocks.collect::<Result<_>>()?;
    fully_shard_on_mesh(Network { first, blocks, last }, mesh, options)
}

/// Trains on each rank's part of the batch, and returns the losses and the full parameters.
fn trained(world: &ProcessGroup, replicas: usize, steps: u64) -> Result<(Sharded, Vec<f32>)> {
    let network = made(world, &mesh(world, replicas)?)?;
    for number in 0..steps {
        step(&network, world.rank(), world.size(), number, world.device())?;
        descend(&network.parameters())?;
    }
    let all = whole(&network)?;
    Ok((network, all))
}

#[test]
fn replicas_of_sharded_ranks_train_as_one_with_the_whole_batch() {
    let (_, wanted) = alone(4);
    for (ranks, replicas) in [(4, 2), (6, 2), (6, 3), (4, 4), (4, 1)] {
        let found = run_ranks(&simulated_devices(ranks).unwrap(), |world| {
            let (network, all) = trained(&world, replicas, 4)?;
            let (shards, copies) = (network.group().size(), network.replicas().map(ProcessGroup::size));
            assert_eq!((shards, copies), (ranks / replicas as u32, Some(replicas as u32)));
            Ok((parameter_values(&network.parameters())?, all))
        })
        .unwrap();
        let apart = ranks as usize / replicas;
        for (rank, (shards, all)) in found.iter().enumerate() {
            close(all, &wanted, 2e-6);
            assert_eq!(all, &found[0].1, "all ranks have the same bits");
            assert_eq!(shards, &found[rank % apart].0, "replicas have the same rows");
        }
    }
}

#[test]
fn gradients_that_are_not_synchronized_add_up_and_are_clipped_over_the_whole() {
    run_ranks(&simulated_devices(4).unwrap(), |world| {
        let norm = |replicas: usize| -> Result<(f32, Vec<f32>)> {
            let network = made(&world, &mesh(&world, replicas)?)?;
            network.set_requires_gradient_sync(false);
            step(&network, world.rank(), 4, 0, world.device())?;
            assert!(network.parameters().iter().all(|shard| shard.grad().is_none()));
            network.set_requires_gradient_sync(true);
            step(&network, world.rank(), 4, 1, world.device())?;
            let norm = network.clip_grad_norm_(0.1, 2.0)?.item::<f32>()?;
            no_grad(|| descend(&network.parameters()))?;
            Ok((norm, whole(&network)?))
        };
        let ((one, first), (two, second)) = (norm(1)?, norm(2)?);
        close(&[one], &[two], 1e-5);
        close(&first, &second, 2e-6);
        Ok(())
    })
    .unwrap();
}

#[test]
fn one_replica_writes_a_checkpoint_and_all_read_it() {
    let folder = Folder::new("hybrid");
    let path = folder.0.join("step");
    run_ranks(&simulated_devices(4).unwrap(), |world| {
        let (network, saved) = trained(&world, 2, 2)?;
        let optimizer = Adam::new(network.parameters(), AdamOptions::default())?;
        network.save_sharded(&path, Some(&optimizer.state_dict()))?;
        let error = network.save_sharded(&path, None).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
        // As four shards, and as two replicas.
        for replicas in [1, 2] {
            let other = made(&world, &mesh(&world, replicas)?)?;
            other.load_sharded(&path, None)?;
            assert_eq!(whole(&other)?, saved);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2);
}

#[test]
fn meshes_of_three_dimensions_are_refused() {
    run_ranks(&simulated_devices(1).unwrap(), |world| {
        let mesh = DeviceMesh::new(&world, &[1, 1, 1], &["a", "b", "c"])?;
        let error = fully_shard_on_mesh(plain(1, world.device())?, &mesh, FullyShardOptions::default());
        let error = error.err().expect("three dimensions").to_string();
        assert!(error.contains("fully_shard expects a 1D or 2D DeviceMesh"), "{error}");
        Ok(())
    })
    .unwrap();
}

fn two_by_two(world: &ProcessGroup, _: u64) -> Result<()> {
    let (_, own) = trained(world, 2, 2)?;
    let all = world.all_gather_object(bytes(&own))?;
    assert!(all.iter().all(|other| *other == all[0]));
    Tensor::zeros(&[1], thalweg_ir::DType::F32, world.device()).map(drop)
}

#[test]
fn no_schedule_has_a_race() {
    checked(8, 4, two_by_two);
}
