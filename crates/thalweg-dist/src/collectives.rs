//! The collectives of a group, one by one: each is a [`Coalescing`](crate::Coalescing) of one.

use thalweg_ir::DType;
use thalweg_runtime::Result;
use thalweg_tensor::Tensor;

use crate::{ProcessGroup, ReduceOp, Work};

/// Defines a collective as the method of the same name of a [`Coalescing`](crate::Coalescing), followed by its submission.
macro_rules! collectives {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*);)*) => {
        impl ProcessGroup {
            $(
                $(#[$doc])*
                ///
                /// Asynchronous: [`Work::wait`] makes the current stream wait for it.
                ///
                /// # Errors
                #[doc = concat!("Those of [`Coalescing::", stringify!($name), "`](crate::Coalescing::", stringify!($name), "),")]
                /// and the reason why the group failed, if it has. Nothing is submitted then.
                #[track_caller]
                pub fn $name(&self, $($argument: $type),*) -> Result<Work> {
                    let mut one = self.coalescing();
                    one.$name($($argument),*)?;
                    one.submit()
                }
            )*
        }
    };
}

collectives! {
    /// Replaces the tensor on every rank by the reduction of all ranks' tensors (`torch.distributed.all_reduce`).
    fn all_reduce(tensor: &Tensor, operation: ReduceOp);

    /// Replaces the tensor on rank `dst` by the reduction of all ranks' tensors (`torch.distributed.reduce`).
    fn reduce(tensor: &Tensor, dst: u32, operation: ReduceOp);

    /// Replaces the tensor on every rank by that of rank `src` (`torch.distributed.broadcast`).
    fn broadcast(tensor: &Tensor, src: u32);

    /// Gathers the inputs of all ranks into one tensor (`torch.distributed.all_gather_into_tensor`).
    fn all_gather_into_tensor(output: &Tensor, input: &Tensor);

    /// Gathers the inputs of all ranks, each into a tensor of its own (`torch.distributed.all_gather`).
    fn all_gather(outputs: &[Tensor], input: &Tensor);

    /// Reduces the inputs of all ranks, and writes its part to each rank's output (`torch.distributed.reduce_scatter_tensor`).
    fn reduce_scatter_tensor(output: &Tensor, input: &Tensor, operation: ReduceOp);

    /// Reduces lists of tensors: rank r gets the reduction of all r-th entries (`torch.distributed.reduce_scatter`).
    fn reduce_scatter(output: &Tensor, inputs: &[Tensor], operation: ReduceOp);

    /// Exchanges rows of one tensor with all ranks (`torch.distributed.all_to_all_single`).
    fn all_to_all_single(output: &Tensor, input: &Tensor, output_splits: Option<&[usize]>, input_splits: Option<&[usize]>);

    /// Sends one tensor to each rank, and receives one from each (`torch.distributed.all_to_all`).
    fn all_to_all(outputs: &[Tensor], inputs: &[Tensor]);

    /// Gathers the tensors of all ranks on rank `dst` (`torch.distributed.gather`).
    fn gather(tensor: &Tensor, gather_list: Option<&[Tensor]>, dst: u32);

    /// Sends each rank one of the tensors of rank `src` (`torch.distributed.scatter`).
    fn scatter(tensor: &Tensor, scatter_list: Option<&[Tensor]>, src: u32);

    /// Sends the tensor to rank `dst` (`torch.distributed.isend`).
    fn send(tensor: &Tensor, dst: u32);

    /// Receives the tensor from rank `src` (`torch.distributed.irecv`).
    fn recv(tensor: &Tensor, src: u32);
}

impl ProcessGroup {
    /// Waits until all ranks have made this call (`torch.distributed.barrier`). *Blocks*, also until the earlier work of this
    /// rank's current stream is done.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let location = std::panic::Location::caller();
        thalweg_tensor::caller::at_line(location, || {
            let token = Tensor::zeros(&[1], DType::F32, self.device())?;
            let mut one = self.coalescing();
            one.all_reduce(&token, ReduceOp::Sum)?;
            let work = one.submit()?;
            work.synchronize()
        })
    }
}
