//! Streams and events.

use std::sync::Arc;

use crate::advice::NOT_READY;
use crate::context::Context;
use crate::entry_points::Handle;
use crate::error::{CudaError, Result};

/// `CU_STREAM_NON_BLOCKING`: not ordered against the legacy default stream.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;

/// A stream, not ordered against the legacy default stream unless another library made it so. Clones are the same
/// stream, which is destroyed with the last of them.
#[derive(Clone, Debug)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

#[derive(Debug)]
struct StreamInner {
    context: Context,
    raw: Handle,
    /// Whether it is ours to destroy.
    owned: bool,
}

impl Stream {
    /// A stream of `priority`; lower numbers go first, 0 is the default.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn new(context: &Context, priority: i32) -> Result<Self> {
        let mut raw = 0;
        context.call("cuStreamCreateWithPriority", |api| {
            // SAFETY: the driver writes one handle.
            unsafe { (api.stream_create)(&raw mut raw, NON_BLOCKING, priority) }
        })?;
        Ok(Self { inner: Arc::new(StreamInner { context: context.clone(), raw, owned: true }) })
    }

    /// A stream of another library (a `CUstream`); 0 is the legacy default stream.
    ///
    /// # Safety
    /// The stream must be of this context and live as long as this value and its clones. Outputs keep some until they are
    /// dropped, and a communicator may keep one until it is dropped itself.
    pub unsafe fn from_raw(context: &Context, raw: usize) -> Self {
        Self { inner: Arc::new(StreamInner { context: context.clone(), raw, owned: false }) }
    }

    /// Whether a capture is under way on it.
    ///
    /// # Errors
    /// When the capture has failed.
    pub fn is_capturing(&self) -> Result<bool> {
        let mut status = 0;
        self.context().call("cuStreamIsCapturing", |api| {
            // SAFETY: the stream lives and the driver writes one integer.
            unsafe { (api.stream_is_capturing)(self.raw(), &raw mut status) }
        })?;
        Ok(status != 0)
    }

    /// Starts to capture: work on the stream goes into a graph from here on. Other threads may go on as they like.
    ///
    /// # Errors
    /// When a capture is under way already.
    pub fn begin_capture(&self) -> Result<()> {
        self.context().call("cuStreamBeginCapture", |api| {
            // SAFETY: the stream lives.
            unsafe { (api.capture_begin)(self.raw(), THREAD_LOCAL) }
        })
    }

    /// Ends the capture and makes what was captured launchable.
    ///
    /// # Errors
    /// When something in between could not be captured.
    pub fn end_capture(&self) -> Result<Graph> {
        let mut graph = 0;
        self.context().call("cuStreamEndCapture", |api| {
            // SAFETY: the stream lives and the driver writes one handle.
            unsafe { (api.capture_end)(self.raw(), &raw mut graph) }
        })?;
        let mut raw = 0;
        let made = self.context().call("cuGraphInstantiate", |api| {
            // SAFETY: the graph lives and the driver writes one handle.
            unsafe { (api.graph_instantiate)(&raw mut raw, graph, 0) }
        });
        // SAFETY: the graph is ours, and what was instantiated does not need it.
        self.context().call_in_drop(|api| unsafe { (api.graph_destroy)(graph) });
        made?;
        Ok(Graph { context: self.context().clone(), raw })
    }

    /// Waits for everything on the stream.
    ///
    /// # Errors
    /// When work on the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.context().call("cuStreamSynchronize", |api| {
            // SAFETY: the stream lives.
            unsafe { (api.stream_synchronize)(self.raw()) }
        })
    }

    /// Whether everything on the stream is done.
    ///
    /// # Errors
    /// When work on the device failed.
    pub fn is_done(&self) -> Result<bool> {
        let context = self.context();
        context.outside_capture(|| {
            done(context.call("cuStreamQuery", |api| {
                // SAFETY: the stream lives.
                unsafe { (api.stream_query)(self.raw()) }
            }))
        })
    }

    /// Lets later work on the stream wait for `event`.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.context().call("cuStreamWaitEvent", |api| {
            // SAFETY: stream and event live.
            unsafe { (api.stream_wait_event)(self.raw(), event.raw, 0) }
        })
    }

    /// Copies `bytes` bytes, in stream order.
    ///
    /// # Safety
    /// Both addresses (of device or pinned host memory) must be valid for `bytes` bytes until the copy is done, and
    /// nothing else may write either, or read `to`, meanwhile.
    ///
    /// # Errors
    /// When the driver refuses.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.context().call("cuMemcpyAsync", |api| {
            // SAFETY: the caller answers for the addresses.
            unsafe { (api.copy_async)(to, from, bytes, self.raw()) }
        })
    }

    /// Sets `bytes` bytes at `to` to `value`, in stream order.
    ///
    /// # Safety
    /// `to` must be valid for `bytes` bytes until the work is done, and nothing else may use them meanwhile.
    ///
    /// # Errors
    /// When the driver refuses.
    pub unsafe fn fill(&self, to: u64, value: u8, bytes: usize) -> Result<()> {
        self.context().call("cuMemsetD8Async", |api| {
            // SAFETY: the caller answers for the address.
            unsafe { (api.fill_async)(to, value, bytes, self.raw()) }
        })
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn raw(&self) -> Handle {
        self.inner.raw
    }
}

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: i32 = 1;

/// Captured work, ready to be launched again and again.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    raw: Handle,
}

impl Graph {
    /// Launches it on `stream`.
    ///
    /// # Safety
    /// Whatever its work uses must be there until it is done: memory given to captured calls, what they gave, and their
    /// communicator, no other call of which may run meanwhile.
    ///
    /// # Errors
    /// When the driver refuses.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        self.context.call("cuGraphLaunch", |api| {
            // SAFETY: graph and stream live; the caller answers for the rest.
            unsafe { (api.graph_launch)(self.raw, stream.raw()) }
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once, destroyed once; the driver lets launches end first.
        self.context.call_in_drop(|api| unsafe { (api.graph_exec_destroy)(self.raw) });
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // SAFETY: created in `new`, destroyed once; the driver lets work on it end first.
        self.context.call_in_drop(|api| unsafe { (api.stream_destroy)(self.raw) });
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: Handle,
}

impl Event {
    /// An event; `timed` ones can be subtracted, the others cost less.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn new(context: &Context, timed: bool) -> Result<Self> {
        let mut raw = 0;
        context.call("cuEventCreate", |api| {
            // SAFETY: the driver writes one handle.
            unsafe { (api.event_create)(&raw mut raw, if timed { 0 } else { NO_TIMING }) }
        })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Puts the event behind everything now on `stream`.
    ///
    /// # Errors
    /// When the stream is of another device, or the driver fails.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.call("cuEventRecord", |api| {
            // SAFETY: stream and event live.
            unsafe { (api.event_record)(self.raw, stream.raw()) }
        })
    }

    /// Waits for it.
    ///
    /// # Errors
    /// When work on the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.context.call("cuEventSynchronize", |api| {
            // SAFETY: the event lives.
            unsafe { (api.event_synchronize)(self.raw) }
        })
    }

    /// Whether it has come.
    ///
    /// # Errors
    /// When work on the device failed.
    pub fn is_done(&self) -> Result<bool> {
        self.context.outside_capture(|| {
            done(self.context.call("cuEventQuery", |api| {
                // SAFETY: the event lives.
                unsafe { (api.event_query)(self.raw) }
            }))
        })
    }

    /// Milliseconds from `start` to this event; both timed and done.
    ///
    /// # Errors
    /// When one is not timed or not done.
    pub fn since(&self, start: &Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        self.context.call("cuEventElapsedTime", |api| {
            // SAFETY: both events live and the driver writes one float.
            unsafe { (api.event_elapsed)(&raw mut milliseconds, start.raw, self.raw) }
        })?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        self.context.call_in_drop(|api| unsafe { (api.event_destroy)(self.raw) });
    }
}

/// A query's result, for which "not ready" is no error.
fn done(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(CudaError::Call(error)) if error.code == NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}
