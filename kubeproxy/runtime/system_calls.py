"""Tables of the system calls that a confined process does not need, with their numbers on each architecture.

The numbers are from arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h. From 424 on, they are
the same on all architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Numbers = tuple[int | None, int | None]
"""The numbers on x86_64 and on aarch64. None means that the architecture lacks the call."""

FILES: Final[Mapping[str, Numbers]] = {
    # Calls that open or create files.
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "creat": (85, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # Calls that remove or rename files.
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rmdir": (84, None),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    # Calls that change files. They include calls with descriptors, because standard error may be a file.
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    # Calls that read attributes or links, or watch files, without opening them.
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # Calls that change the working directory, the root, or mounts.
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
}

PROCESSES: Final[Mapping[str, Numbers]] = {
    # Calls that start programs, processes or threads.
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "unshare": (272, 97),
    "setns": (308, 268),
    # Calls that signal or access other processes, or change their priorities.
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # Calls on objects that processes share by name: queues, semaphores, memory and keys.
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}

KERNEL: Final[Mapping[str, Numbers]] = {
    # Calls of the parts of the kernel with the most known vulnerabilities, and calls about the kernel's log and
    # modules.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "vmsplice": (278, 75),
    "modify_ldt": (154, None),
    "syslog": (103, 116),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
}

SOCKETS: Final[Mapping[str, Numbers]] = {
    # Calls that are refused if the process needs no new sockets.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
}

PAIRS: Final[Mapping[str, Numbers]] = {"socketpair": (53, 199)}
"""Refused, because a datagram socket of a pair can send to any other Unix socket by name."""

INSPECTED: Final[Mapping[str, Numbers]] = {
    # Calls that are allowed or refused depending on their arguments.
    "socket": SOCKETS["socket"],
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
}

UNKNOWN_FROM: Final = 463
"""The first number (Linux 6.13) that is newer than these tables."""
