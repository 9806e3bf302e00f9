//! An indexed Job with its headless Service.
