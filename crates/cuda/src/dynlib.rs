//! Opening a shared library and finding its entry points, with errors that say where and why.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::error::LoadError;
use crate::version::Version;

/// One place where a library was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// A path, or a bare name for the loader's own search.
    pub place: PathBuf,
    /// What the loader said.
    pub reason: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.display();
        // The loader's reason usually starts with the place.
        if self.reason.starts_with(&place.to_string()) {
            f.write_str(&self.reason)
        } else {
            write!(f, "{place} ({})", self.reason)
        }
    }
}

/// An open library.
#[derive(Debug)]
pub(crate) struct Opened {
    library: Library,
    path: PathBuf,
    install: &'static str,
}

impl Opened {
    /// Opens the first of `places` that opens and that `accept` takes. `name` and `install` are for the error.
    ///
    /// # Errors
    /// Where there was one place only and `accept` refused it: its error. Otherwise all places, and why each does not
    /// serve.
    pub(crate) fn first<T>(
        name: &str,
        places: &[PathBuf],
        install: &'static str,
        mut accept: impl FnMut(&Self) -> Result<T, LoadError>,
    ) -> Result<(Self, T), LoadError> {
        let mut tried = Vec::new();
        let mut refused = None;
        for place in places {
            // SAFETY: this runs the library's initialisers. The places name CUDA's own libraries, or are what the
            // user set; whoever can put another library there can run code as this user anyway.
            let reason = match unsafe { Library::new(place) } {
                Ok(library) => {
                    let opened = Self { library, path: place.clone(), install };
                    match accept(&opened) {
                        Ok(answer) => return Ok((opened, answer)),
                        Err(error) => {
                            // A refused library is unloaded (it was asked for no more than `accept` asks): the
                            // loader would answer its bare name with it and not search on.
                            let reason = error.reason();
                            refused.get_or_insert(error);
                            reason
                        }
                    }
                }
                Err(error) => reason(&error),
            };
            tried.push(Tried { place: place.clone(), reason });
        }
        let (library, install) = (name.to_owned(), install.to_owned());
        Err(match refused {
            Some(error) if tried.len() == 1 => error,
            Some(_) => LoadError::NoneServes { library, tried, install },
            None => LoadError::Missing { library, tried, install },
        })
    }

    /// Where the library was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a version below `needed`.
    pub(crate) fn at_least(&self, needed: Version, found: Version) -> Result<Version, LoadError> {
        if found >= needed {
            return Ok(found);
        }
        let (path, install) = (self.path.clone(), self.install.to_owned());
        Err(LoadError::TooOld { path, found, needed, install })
    }

    /// The result of `call`, one that needs nothing, which returned `code`.
    pub(crate) fn first_call(&self, call: &'static str, code: i32) -> Result<(), LoadError> {
        if code == 0 {
            return Ok(());
        }
        let (path, install) = (self.path.clone(), self.install.to_owned());
        Err(LoadError::Unusable { path, call, code, install })
    }

    /// The entry point `symbol`, which the library has since version `since`.
    ///
    /// # Safety
    /// `T` must be the function pointer type of that entry point, and the library must stay loaded for as long as
    /// the pointer is used (see [`Opened::keep`]).
    pub(crate) unsafe fn symbol<T: Copy>(
        &self,
        symbol: &'static str,
        since: &'static str,
    ) -> Result<T, LoadError> {
        // SAFETY: the caller answers for the type.
        match unsafe { self.library.get::<T>(symbol) } {
            Ok(found) => Ok(*found),
            Err(error) => Err(LoadError::Symbol {
                path: self.path.clone(),
                symbol,
                since,
                reason: reason(&error),
                install: self.install.to_owned(),
            }),
        }
    }

    /// Keeps the library loaded until the process ends. CUDA's libraries own threads and exit handlers, so they are
    /// never unloaded; and what was resolved from a kept library stays valid.
    pub(crate) fn keep(self) -> PathBuf {
        let Self { library, path, .. } = self;
        std::mem::forget(library);
        path
    }
}

/// libloading's own text says only that `dlopen` failed: the loader's reason is its source.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Declares a table of entry points, all resolved at once.
macro_rules! entry_points {
    ($(#[$doc:meta])* $table:ident { $($field:ident = $symbol:literal, $since:literal, ($($arg:ty),*);)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> i32,)*
        }

        impl $table {
            /// Finds every entry point in `opened`, which the caller keeps loaded.
            pub(crate) fn resolve(
                opened: &$crate::dynlib::Opened,
            ) -> ::std::result::Result<Self, $crate::error::LoadError> {
                Ok(Self {
                    $(
                        // SAFETY: the types in this table are those of CUDA's headers, and the caller keeps the
                        // library.
                        $field: unsafe { opened.symbol($symbol, $since) }?,
                    )*
                })
            }
        }
    };
}
pub(crate) use entry_points;
