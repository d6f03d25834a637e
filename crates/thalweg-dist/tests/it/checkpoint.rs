//! Sharded checkpoints: written and read by different numbers of ranks, by ranks that fail, and on disks that are full.

use std::path::Path;
use std::time::Duration;

use thalweg_dist::{
    FullyShardOptions, GroupOptions, ProcessGroup, run_ranks, run_ranks_with, simulated_devices,
};
use thalweg_ir::DType;
use thalweg_nn::module::Module;
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;

use crate::fully_shard::{Sharded, sharded, step, whole};
use crate::support::{Folder, close};

fn made(group: &ProcessGroup) -> Result<(Sharded, Adam)> {
    let network = sharded(group, FullyShardOptions::default())?;
    let optimizer = Adam::new(network.parameters(), AdamOptions::default())?;
    Ok((network, optimizer))
}

/// Trains from one step to another, and returns the losses of this rank. `before` is called before each step.
fn train(
    group: &ProcessGroup,
    (network, optimizer): &(Sharded, Adam),
    steps: std::ops::Range<u64>,
    before: impl Fn(u64) -> Result<()>,
) -> Result<Vec<f32>> {
    steps
        .map(|number| {
            before(number)?;
            let loss = step(network, group.rank(), group.size(), number, group.device())?;
            optimizer.step()?;
            optimizer.zero_grad();
            Ok(loss)
        })
        .collect()
}

fn save((network, optimizer): &(Sharded, Adam), path: &Path) -> Result<()> {
    network.save_sharded(path, Some(&optimizer.state_dict()))
}

fn load((network, optimizer): &(Sharded, Adam), path: &Path) -> Result<()> {
    network.load_sharded(path, Some(&optimizer.state_dict()))
}

#[test]
fn a_run_goes_on_from_its_last_checkpoint_when_a_rank_ends() {
    let folder = Folder::new("restart");
    let path = folder.0.join("step-3");
    let wanted = run_ranks(&simulated_devices(4).unwrap(), |group| {
        let all = made(&group)?;
        let losses = train(&group, &all, 0..6, |_| Ok(()))?;
        Ok((losses, whole(&all.0)?))
    })
    .unwrap();

    let reported = thalweg_lock::Mutex::new(Vec::new());
    let error = run_ranks(&simulated_devices(4).unwrap(), |group| {
        let all = made(&group)?;
        let outcome = train(&group, &all, 0..6, |number| match (number, group.rank()) {
            (3, _) => save(&all, &path),
            (4, 2) => Err(Error::invalid("this rank was killed")),
            _ => Ok(()),
        });
        // The others learn which rank it was, when they ask the group.
        if group.rank() != 2 {
            let begin = std::time::Instant::now();
            let text = loop {
                match group.check() {
                    Err(error) => break error.to_string(),
                    Ok(()) if begin.elapsed() > Duration::from_secs(20) => break "nothing".to_owned(),
                    Ok(()) => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            reported.lock().push(text);
        }
        outcome
    })
    .unwrap_err();
    assert!(error.to_string().starts_with("rank 2: this rank was killed"), "{error}");
    let reported = reported.into_inner();
    assert!(
        reported.len() == 3 && reported.iter().all(|text| text.contains("rank 2 aborted the group")),
        "{reported:?}"
    );

    for ranks in [4, 2, 3, 1] {
        let found = run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            let all = made(&group)?;
            load(&all, &path)?;
            let losses = train(&group, &all, 3..6, |_| Ok(()))?;
            Ok((losses, whole(&all.0)?))
        })
        .unwrap();
        if ranks == 4 {
            for ((losses, parameters), (wanted_losses, wanted)) in found.iter().zip(&wanted) {
                assert_eq!(losses, &wanted_losses[3..], "the same losses as without the end");
                assert_eq!(parameters, wanted);
            }
        } else {
            // Adam divides by magnitudes that are sums in another order.
            close(&found[0].1, &wanted[0].1, 2e-4);
            let mean = |losses: &mut dyn Iterator<Item = f32>| losses.sum::<f32>();
            let own = mean(&mut found.iter().map(|(losses, _)| losses[2])) / ranks as f32;
            let other = mean(&mut wanted.iter().map(|(losses, _)| losses[5])) / 4.0;
            assert!((own - other).abs() < 1e-4, "{own}, not {other}");
        }
    }
}

#[test]
fn a_disk_that_is_full_is_told_to_all_and_leaves_no_checkpoint() {
    let folder = Folder::new("full");
    let path = folder.0.join("new");
    // Rank 1 writes to a device that has no room.
    let partial = folder.0.join("new.partial");
    std::fs::create_dir(&partial).unwrap();
    std::os::unix::fs::symlink("/dev/full", partial.join("rank-00001.safetensors")).unwrap();
    let options = GroupOptions { timeout: Duration::from_secs(20), ..GroupOptions::default() };
    run_ranks_with(&simulated_devices(3).unwrap(), &options, |group| {
        let all = made(&group)?;
        let error = save(&all, &path).unwrap_err();
        assert!(error.is_distributed(), "{error}");
        let text = error.to_string();
        assert!(text.contains("rank 1 could not write its part of a checkpoint"), "{text}");
        assert!(text.contains("No space left on device"), "{text}");
        assert!(!path.exists());
        group.barrier()?;
        // The ranks are in step, and the next one is whole.
        save(&all, &path)?;
        assert!(path.join("rank-00002.safetensors").exists());
        let error = save(&all, &path).unwrap_err().to_string();
        assert!(
            error.contains("rank 0 could not begin a checkpoint") && error.contains("already"),
            "{error}"
        );
        Ok(())
    })
    .unwrap();
    assert!(!partial.exists());
}

#[test]
fn checkpoints_that_do_not_fit_change_nothing() {
    let folder = Folder::new("other");
    let path = folder.0.join("saved");
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let all = made(&group)?;
        save(&all, &path)?;
        let rank = group.rank();
        if rank == 0 {
            std::fs::copy(path.join("rank-00001.safetensors"), path.join("other")).unwrap();
            std::fs::remove_file(path.join("rank-00001.safetensors")).unwrap();
        }
        group.barrier()?;
        let before = whole(&all.0)?;
        let error = load(&all, &path).unwrap_err().to_string();
        assert!(
            error.contains("rank 0 could not read a checkpoint") && error.contains("rank-00001"),
            "{error}"
        );
        group.barrier()?;
        if rank == 0 {
            std::fs::rename(path.join("other"), path.join("rank-00001.safetensors")).unwrap();
        }
        group.barrier()?;
        load(&all, &path)?;
        assert_eq!(whole(&all.0)?, before);

        // A network with one layer more.
        let wide = thalweg_nn::module::Linear {
            weight: Tensor::zeros(&[3, 2], DType::F32, group.device())?.requires_grad_()?,
            bias: None,
        };
        let wide = thalweg_dist::fully_shard(wide, &group, FullyShardOptions::default())?;
        let error = wide.load_sharded(&path, None).unwrap_err().to_string();
        assert!(error.contains("model.weight is not in the checkpoint"), "{error}");
        Ok(())
    })
    .unwrap();
}
