// Put before every C++ file by release/wheel.py, so that a wheel built on a newer system needs no
// symbol younger than manylinux_2_28. In that container it would change nothing.
#pragma once

#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");
#endif

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 32)
#include <sys/single_threaded.h>

// reference counts are then always atomic, as on older systems
static const char pybeam_is_single_threaded = 0;
#define __libc_single_threaded pybeam_is_single_threaded
#endif
