//! What is started: the command lines of the engines and their contracts.
