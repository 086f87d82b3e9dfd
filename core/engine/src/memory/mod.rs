//! Who uses how much memory, and what the operating system says about it.
//!
//! Whatever allocates more than 1 MiB asks the [`Accountant`] first and holds the [`Reservation`] as long as the memory.

mod accountant;
mod heat;
mod pressure;
mod probe;

pub use accountant::{Accountant, Category, Reservation};
pub use heat::{ThermalLevel, ThermalMonitor};
pub use pressure::{MemoryPressure, PressureMonitor, PressureOptions};
pub use probe::{MemoryProbe, MemoryReading, SystemMemory};

use crate::{Error, Result};

/// A zeroed vector, or a typed error instead of an abort when the system has no memory.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub(crate) fn zeroed<T: Clone + Default>(len: usize, category: Category) -> Result<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
        category,
        bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
    })?;
    out.resize(len, T::default());
    Ok(out)
}
