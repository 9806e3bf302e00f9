//! Loaded kernels and their launch.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use crate::context::Context;
use crate::cubin::Cubin;
use crate::entry_points::Handle;
use crate::error::Result;
use crate::stream::Stream;

/// `CUlaunchAttribute` with a value that is a few integers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RawAttribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}
const _: () = assert!(size_of::<RawAttribute>() == 72);

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: *const RawAttribute,
    attribute_count: u32,
}
const _: () = assert!(size_of::<RawLaunch>() == 56);
const _: () = assert!(std::mem::offset_of!(RawLaunch, stream) == 32);
const _: () = assert!(std::mem::offset_of!(RawLaunch, attribute_count) == 48);

const COOPERATIVE: u32 = 2;
const CLUSTER_DIMENSION: u32 = 4;

/// The shape of a launch; grids and blocks have one dimension here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
    /// Dynamic shared memory of each block, in bytes.
    pub shared: u32,
    /// Whether all blocks must run at once.
    pub cooperative: bool,
    /// Blocks of a cluster; 1 for none.
    pub cluster: u32,
}

/// Kernels loaded into a context.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    raw: Handle,
}

impl Module {
    /// Loads `cubin`.
    ///
    /// # Errors
    /// When it is for another architecture or a newer driver.
    pub fn load(context: &Context, cubin: &Cubin) -> Result<Self> {
        let mut raw = 0;
        context.call("cuModuleLoadData", |api| {
            // SAFETY: a `Cubin` holds every part that its tables speak of; the driver copies what it needs.
            unsafe { (api.module_load)(&raw mut raw, cubin.bytes().as_ptr().cast()) }
        })?;
        Ok(Self { inner: Arc::new(Inner { context: context.clone(), raw }) })
    }

    /// The kernel of that (mangled) name.
    ///
    /// # Errors
    /// When there is none.
    pub fn function(&self, name: &CStr) -> Result<Function> {
        let mut raw = 0;
        self.inner.context.call("cuModuleGetFunction", |api| {
            // SAFETY: the module lives and the driver writes one handle.
            unsafe { (api.module_function)(&raw mut raw, self.inner.raw, name.as_ptr()) }
        })?;
        Ok(Function { module: self.clone(), raw })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: loaded once, and every function of it held a clone.
        self.context.call_in_drop(|api| unsafe { (api.module_unload)(self.raw) });
    }
}

/// A property of a kernel, by the driver's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionAttribute(pub i32);

impl FunctionAttribute {
    /// The most threads that a block of it can have.
    pub const MOST_THREADS: Self = Self(0);
    /// Static shared memory, in bytes.
    pub const STATIC_SHARED: Self = Self(1);
    /// Local memory of a thread, in bytes: spills and arrays.
    pub const LOCAL: Self = Self(3);
    /// Registers of a thread.
    pub const REGISTERS: Self = Self(4);
    /// The most dynamic shared memory that a launch may ask for, in bytes; can be set.
    pub const MOST_DYNAMIC_SHARED: Self = Self(8);
    /// Whether clusters beyond eight blocks are allowed; can be set.
    pub const LARGE_CLUSTER: Self = Self(14);
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Function {
    module: Module,
    raw: Handle,
}

impl Function {
    /// One of its properties.
    ///
    /// # Errors
    /// When the driver does not know the property.
    pub fn attribute(&self, attribute: FunctionAttribute) -> Result<i32> {
        let mut value: c_int = 0;
        self.context().call("cuFuncGetAttribute", |api| {
            // SAFETY: the function lives and the driver writes one integer.
            unsafe { (api.function_get)(&raw mut value, attribute.0, self.raw) }
        })?;
        Ok(value)
    }

    /// Sets one of its properties, for every user of the module.
    ///
    /// # Errors
    /// When the device does not allow the value.
    pub fn set_attribute(&self, attribute: FunctionAttribute, value: i32) -> Result<()> {
        self.context().call("cuFuncSetAttribute", |api| {
            // SAFETY: the function lives.
            unsafe { (api.function_set)(self.raw, attribute.0, value) }
        })
    }

    /// Launches it on `stream`, with `args` as its one parameter.
    ///
    /// # Safety
    /// `A` must have the layout of the kernel's one parameter; every address in it must be valid for what the kernel
    /// does with it until the kernel ends, and this function's module must live until then.
    ///
    /// # Errors
    /// When the shape does not fit the device, or earlier work failed.
    pub unsafe fn launch<A: Copy>(&self, stream: &Stream, shape: Launch, args: &A) -> Result<()> {
        let mut attributes = [RawAttribute { id: 0, pad: 0, value: [0; 16] }; 2];
        let mut used = 0;
        if shape.cooperative {
            attributes[used].id = COOPERATIVE;
            attributes[used].value[0] = 1;
            used += 1;
        }
        if shape.cluster > 1 {
            attributes[used].id = CLUSTER_DIMENSION;
            attributes[used].value[..3].copy_from_slice(&[shape.cluster, 1, 1]);
            used += 1;
        }
        let raw = RawLaunch {
            grid: [shape.blocks, 1, 1],
            block: [shape.threads, 1, 1],
            shared: shape.shared,
            stream: stream.raw(),
            attributes: attributes.as_ptr(),
            attribute_count: used as u32,
        };
        let mut parameters = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        self.context().call("cuLaunchKernelEx", |api| {
            // SAFETY: the driver reads the configuration, its attributes and the one parameter, all of which live
            // through the call; the caller answers for what the kernel does.
            unsafe { (api.launch)(&raw const raw, self.raw, parameters.as_mut_ptr(), std::ptr::null_mut()) }
        })
    }

    fn context(&self) -> &Context {
        &self.module.inner.context
    }
}
