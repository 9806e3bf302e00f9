//! Points in streams that memory waits for, from events that are used again and again.

use std::sync::{Arc, Mutex, PoisonError};

use crate::context::Context;
use crate::error::Result;
use crate::stream::{Event, Stream};

/// Events that are not in use.
#[derive(Debug)]
pub(crate) struct Events {
    context: Context,
    spare: Mutex<Vec<Event>>,
}

impl Events {
    pub(crate) fn new(context: &Context) -> Arc<Self> {
        Arc::new(Self { context: context.clone(), spare: Mutex::new(Vec::new()) })
    }

    /// The point that `stream` has reached with all its work so far.
    pub(crate) fn now(self: &Arc<Self>, stream: &Stream) -> Result<Moment> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = spare.map_or_else(|| Event::new(&self.context, false), Ok)?;
        event.record(stream)?;
        let recorded = Recorded { event: Some(event), stream: stream.clone(), events: self.clone() };
        Ok(Moment(Arc::new(recorded)))
    }
}

/// One recording of an event. Clones are the same recording; another recording is another moment.
#[derive(Clone, Debug)]
pub(crate) struct Moment(Arc<Recorded>);

#[derive(Debug)]
struct Recorded {
    /// There until dropped.
    event: Option<Event>,
    /// Kept alive: the driver gives the handle of a destroyed stream to the next one, which must not pass for the same.
    stream: Stream,
    events: Arc<Events>,
}

impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Moment {
    /// Lets later work on `stream` wait for it. Work on its own stream comes later anyway.
    pub(crate) fn hold_back(&self, stream: &Stream) -> Result<()> {
        match &self.0.event {
            Some(event) if self.0.stream.raw() != stream.raw() => stream.wait(event),
            _ => Ok(()),
        }
    }

    /// The event.
    pub(crate) fn event(&self) -> Option<&Event> {
        self.0.event.as_ref()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            // Whoever waits for it has said so to the driver already, and a wait stands for the recording there was then.
            self.events.spare.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }
    }
}
