// Package arch holds the rules of the code base that a compiler does not check, as tests: which package may
// import which, what the pure packages must not use, the size of files, package comments, and that every
// invariant and every error reason has a test.
//
// A failure names the file or package and the rule. A rule that is in the way is changed here, in the table,
// where a reviewer sees it.
package arch
