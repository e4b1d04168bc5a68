/* The kernel of the policies. hatch_build.py compiles it; library.py loads what it exports. */

/* What of this file the library was built from: the start of its SHA-256. */
#ifndef TANDEM_SOURCE
#define TANDEM_SOURCE ""
#endif

const char *tandem_source(void) { return TANDEM_SOURCE; }
