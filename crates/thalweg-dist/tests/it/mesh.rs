//! Meshes of ranks: groups per dimension against coordinates that the test computes by itself.

use thalweg_dist::ReduceOp::Sum;
use thalweg_dist::{DeviceMesh, ProcessGroup, run_ranks, simulated_devices};
use thalweg_runtime::Result;

use crate::support::{checked, tensor};

#[test]
fn groups_of_a_mesh_differ_in_one_coordinate() {
    run_ranks(&simulated_devices(12).unwrap(), |world| {
        let mesh = DeviceMesh::new(&world, &[2, 3, 2], &["pp", "dp", "tp"])?;
        let rank = world.rank();
        let own = [rank / 6, rank / 2 % 3, rank % 2];
        assert_eq!(mesh.shape(), [2, 3, 2]);
        assert_eq!(mesh.coordinate(), own.map(|at| at as usize));
        let at = |[plane, row, column]: [u32; 3]| plane * 6 + row * 2 + column;
        for (dimension, name) in ["pp", "dp", "tp"].into_iter().enumerate() {
            let wanted: Vec<u32> = (0..[2, 3, 2][dimension])
                .map(|place| {
                    let mut other = own;
                    other[dimension] = place;
                    at(other)
                })
                .collect();
            let group = mesh.group(name)?;
            assert_eq!(group.global_ranks(), wanted);
            assert_eq!(mesh.local_rank(name)?, own[dimension]);
            let sum = tensor(group, &[rank as f32])?;
            group.all_reduce(&sum, Sum)?.wait()?;
            assert_eq!(sum.item::<f32>()?, wanted.iter().sum::<u32>() as f32);
        }
        let part = mesh.submesh(&["pp", "tp"])?;
        assert_eq!((part.shape(), part.size()), (vec![2, 2], 4));
        assert_eq!(part.group("tp")?.name(), mesh.group("tp")?.name());
        assert!(part.group("dp").unwrap_err().to_string().contains("no dimension \"dp\""));
        assert!(mesh.submesh(&["tp", "pp"]).unwrap_err().is_invalid_argument());
        Ok(())
    })
    .unwrap();
}

#[test]
fn meshes_that_do_not_fit_are_refused() {
    run_ranks(&simulated_devices(2).unwrap(), |world| {
        let huge = usize::MAX;
        for (shape, names) in [
            (&[3][..], &["dp"][..]),
            (&[], &[]),
            (&[0, 2], &["dp", "tp"]),
            (&[huge, huge], &["dp", "tp"]),
            (&[2], &["dp", "tp"]),
            (&[1, 2], &["tp", "tp"]),
            (&[1, 2], &["tp", ""]),
        ] {
            assert!(DeviceMesh::new(&world, shape, names).unwrap_err().is_invalid_argument(), "{shape:?}");
        }
        Ok(())
    })
    .unwrap();
}

fn reduce_along_both(world: &ProcessGroup, seed: u64) -> Result<()> {
    let mesh = DeviceMesh::new(world, &[2, 2], &["dp", "tp"])?;
    let x = tensor(world, &[world.rank() as f32, seed as f32])?;
    mesh.group("tp")?.all_reduce(&x, Sum)?.wait()?;
    mesh.group("dp")?.all_reduce(&x, Sum)?.wait()?;
    assert_eq!(x.to_vec::<f32>()?, [6.0, 4.0 * seed as f32]);
    Ok(())
}

#[test]
fn reductions_along_both_dimensions_are_those_of_all() {
    checked(12, 4, reduce_along_both);
}
