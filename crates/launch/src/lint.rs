//! Launch files that others wrote: what in them fails silently.
