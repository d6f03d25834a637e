//! Destructors of thread-local values: everything that works in a thread works there too.

use std::cell::RefCell;

use thalweg_ir::DType;
use thalweg_runtime::{Device, Result, Stream, StreamGuard};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::device;

/// Runs its function when the thread-local values are destroyed.
struct AtEnd(Option<Box<dyn FnOnce()>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|function| function());
    }
}

thread_local! {
    static AT_END: RefCell<AtEnd> = const { RefCell::new(AtEnd(None)) };
    static GUARD: RefCell<Option<StreamGuard>> = const { RefCell::new(None) };
}

/// Uses functions with thread-local values, and returns the results.
fn work(device: &Device) -> Result<Vec<f32>> {
    let x = Tensor::ones(&[4], DType::F32, device)?.requires_grad_()?;
    x.square()?.sum(&[], false)?.backward()?;
    let gradient = x.grad().expect("a leaf has one");
    let side = Stream::new(device)?;
    side.wait_stream(&device.current_stream())?;
    let doubled = {
        let _current = side.make_current();
        assert_eq!(device.current_stream(), side);
        no_grad(|| gradient.mul_scalar(2.0))?
    };
    device.current_stream().wait_stream(&side)?;
    device.synchronize()?;
    doubled.reshape(&[2, 2])?.to_vec()
}

#[test]
fn operators_work_while_a_threads_values_are_destroyed() {
    // Values are destroyed in the reverse order of their first use: once with those of the library before ours, and once after.
    for is_ours_first in [true, false] {
        let (device, (sender, receiver)) = (device(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            if !is_ours_first {
                work(&device).unwrap();
            }
            let own = device.clone();
            AT_END.with_borrow_mut(|at_end| {
                at_end.0 = Some(Box::new(move || sender.send(work(&own)).unwrap()));
            });
            work(&device).unwrap();
        });
        thread.join().unwrap();
        assert_eq!(receiver.recv().unwrap().unwrap(), [4.0; 4], "{is_ours_first}");
    }
}

#[test]
fn a_guard_may_last_as_long_as_its_thread() {
    let device = device();
    std::thread::spawn(move || {
        let side = Stream::new(&device).unwrap();
        GUARD.set(Some(side.make_current()));
        assert_eq!(device.current_stream(), side);
    })
    .join()
    .unwrap();
}
