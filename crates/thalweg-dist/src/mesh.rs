//! [`DeviceMesh`]: ranks in rows, columns and planes, with a group along each dimension.

use std::fmt;
use std::panic::Location;

use thalweg_derive::at_line;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use crate::ProcessGroup;

/// The ranks of a group as a grid with named dimensions (`torch.distributed.DeviceMesh`), from the view of one rank: with the
/// groups that it is in, one per dimension. Ranks are in row-major order, so ranks along the last dimension are adjacent.
///
/// ```text
/// shape [2, 4], names ["dp", "tp"]:   0 1 2 3     rank 6: group "dp" is [2, 6], group "tp" is [4, 5, 6, 7]
///                                     4 5 6 7             coordinate [1, 2]
/// ```
#[derive(Clone)]
pub struct DeviceMesh {
    /// The group that the original mesh was laid out from; this mesh may have only some of its dimensions.
    world: ProcessGroup,
    dimensions: Vec<Dimension>,
}

/// One dimension of a mesh.
#[derive(Clone)]
struct Dimension {
    name: String,
    group: ProcessGroup,
}

impl DeviceMesh {
    /// Lays the ranks of a group out as a mesh, and makes the groups of its dimensions (`init_device_mesh`). *All* ranks of the group call
    /// it with the same arguments. *Blocks* until they have.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the number of names is not the number of dimensions, a name is empty or occurs twice, or
    /// the product of the sizes is not the number of ranks; [`Error::is_distributed`] if a rank does not make the call in time.
    #[at_line]
    pub fn new(world: &ProcessGroup, shape: &[usize], names: &[&str]) -> Result<Self> {
        check(world.size() as usize, shape, names)?;
        let rank = world.rank() as usize;
        let mut dimensions = Vec::new();
        let mut stride = world.size() as usize;
        for (&size, &name) in shape.iter().zip(names) {
            stride /= size;
            // The group is the ranks that differ only in this coordinate; the color is the lowest of them.
            let color = rank - rank / stride % size * stride;
            let group = world.split(Some(color as u32), 0)?.expect("a rank with a color has a group");
            dimensions.push(Dimension { name: name.to_owned(), group });
        }
        Ok(Self { world: world.clone(), dimensions })
    }

    /// Returns the sizes of the dimensions.
    pub fn shape(&self) -> Vec<usize> {
        self.dimensions.iter().map(|dimension| dimension.group.size() as usize).collect()
    }

    /// Returns the names of the dimensions (`mesh_dim_names`).
    pub fn names(&self) -> Vec<&str> {
        self.dimensions.iter().map(|dimension| dimension.name.as_str()).collect()
    }

    /// Returns the number of ranks of this mesh.
    pub fn size(&self) -> usize {
        self.shape().iter().product()
    }

    /// Returns this rank's coordinates, one number per dimension (`get_coordinate`).
    pub fn coordinate(&self) -> Vec<usize> {
        self.dimensions.iter().map(|dimension| dimension.group.rank() as usize).collect()
    }

    /// Returns the group that the mesh was laid out from.
    pub fn world(&self) -> &ProcessGroup {
        &self.world
    }

    /// Returns this rank's group along a dimension (`get_group`).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the mesh has no such dimension.
    #[track_caller]
    pub fn group(&self, name: &str) -> Result<&ProcessGroup> {
        Ok(&self.dimensions[self.place(name)?].group)
    }

    /// Returns this rank's number along a dimension (`get_local_rank`).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the mesh has no such dimension.
    #[track_caller]
    pub fn local_rank(&self, name: &str) -> Result<u32> {
        Ok(self.group(name)?.rank())
    }

    /// Returns the mesh of some of the dimensions, as this rank sees it, with the groups of this mesh (`mesh["dp", "tp"]`).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the mesh has no such dimension, or the names are not in the mesh's order.
    #[track_caller]
    pub fn submesh(&self, names: &[&str]) -> Result<Self> {
        let places: Vec<usize> = names.iter().map(|name| self.place(name)).collect::<Result<_>>()?;
        if places.is_empty() || places.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(invalid!(
                "submesh: dimensions are named in the order of the mesh, each once: {names:?} of {:?}",
                self.names()
            )
            .at(Location::caller()));
        }
        let dimensions = places.into_iter().map(|place| self.dimensions[place].clone()).collect();
        Ok(Self { world: self.world.clone(), dimensions })
    }

    /// Returns the index of a dimension.
    #[track_caller]
    fn place(&self, name: &str) -> Result<usize> {
        let found = self.dimensions.iter().position(|dimension| dimension.name == name);
        found.ok_or_else(|| {
            let names = self.names();
            invalid!("the mesh has no dimension \"{name}\": they are {names:?}").at(Location::caller())
        })
    }
}

impl fmt::Debug for DeviceMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMesh({:?}, {:?}, at {:?})", self.shape(), self.names(), self.coordinate())
    }
}

/// Checks that a shape and names make a mesh of `ranks` ranks.
fn check(ranks: usize, shape: &[usize], names: &[&str]) -> Result<()> {
    let product = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    if shape.is_empty() || product != Some(ranks) {
        refuse!("init_device_mesh: a mesh of shape {shape:?} does not have the group's {ranks} ranks");
    }
    refuse_if!(
        names.len() != shape.len(),
        "init_device_mesh: mesh_shape and mesh_dim_names should have the same length, got {} and {}",
        shape.len(),
        names.len()
    );
    for (place, name) in names.iter().enumerate() {
        refuse_if!(
            name.is_empty() || names[..place].contains(name),
            "init_device_mesh: each dimension has a name of its own, and \"{name}\" is empty or there twice"
        );
    }
    Ok(())
}
