/* Preloaded into the processes of a pod where the kernel grants no network namespace: it gives them an address of their own in 127.0.0.0/8.
 *
 *   ELASTIC_POD_ADDRESS   the pod's address
 *   ELASTIC_POD_HOSTS     a file of names, written like /etc/hosts and read anew at each look-up
 *   ELASTIC_POD_HOSTNAME  the pod's host name
 *
 *   ELASTIC_POD_MESSAGE_PATH, ELASTIC_POD_MESSAGE_FILE     the path at which the container writes its termination message, and the file meant
 *   ELASTIC_POD_ACCOUNT_PATH, ELASTIC_POD_ACCOUNT_FOLDER   the path at which clients look for the pod's service account, and the folder meant
 *
 * What listens on every address, or on 127.0.0.1 at a chosen port, listens on the pod's address instead, so that pods do not meet on a port.
 * What connects does so from the pod's address; 127.0.0.1 means the pod itself where the pod listens on that port.
 * Programs that are linked statically or make system calls themselves are not reached.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NEXT(function) ((__typeof__(&function))dlsym(RTLD_NEXT, #function))
#define MOST_ADDRESSES 512

static in_addr_t pod_address(void) {
  const char *text = getenv("ELASTIC_POD_ADDRESS");
  struct in_addr address;
  return text && inet_pton(AF_INET, text, &address) == 1 ? address.s_addr : INADDR_NONE;
}

static int is_loopback(in_addr_t address) { return ntohl(address) >> 24 == 127; }

/* Fills `found` with the addresses of a name, in the order of the file, and returns how many there are. */
static int look_up(const char *name, char found[][INET_ADDRSTRLEN], int most) {
  const char *path = getenv("ELASTIC_POD_HOSTS");
  FILE *file = name && path ? fopen(path, "re") : NULL;
  char *line = NULL;
  size_t size = 0;
  int count = 0;
  if (!file) return 0;
  while (count < most && getline(&line, &size, file) >= 0) {
    char *rest = NULL, *address = strtok_r(line, " \t\r\n", &rest), *word;
    if (!address || *address == '#' || strlen(address) >= INET_ADDRSTRLEN) continue;
    while ((word = strtok_r(NULL, " \t\r\n", &rest)))
      if (!strcasecmp(word, name)) {
        strcpy(found[count++], address);
        break;
      }
  }
  free(line);
  fclose(file);
  return count;
}

static struct sockaddr_in6 mapped(in_addr_t address, in_port_t port) {
  struct sockaddr_in6 result = {.sin6_family = AF_INET6, .sin6_port = port};
  result.sin6_addr.s6_addr[10] = result.sin6_addr.s6_addr[11] = 0xff;
  memcpy(result.sin6_addr.s6_addr + 12, &address, sizeof address);
  return result;
}

/* The IPv4 address an address stands for: its own, or the one mapped into IPv6; INADDR_NONE where there is none. */
static in_addr_t as_v4(const struct sockaddr *address) {
  in_addr_t result = INADDR_NONE;
  if (address->sa_family == AF_INET) return ((const struct sockaddr_in *)address)->sin_addr.s_addr;
  if (address->sa_family == AF_INET6) {
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(v6)) memcpy(&result, v6->s6_addr + 12, sizeof result);
  }
  return result;
}

int bind(int fd, const struct sockaddr *address, socklen_t length) {
  in_addr_t pod = pod_address();
  if (pod == INADDR_NONE || !address) return NEXT(bind)(fd, address, length);
  if (address->sa_family == AF_INET) {
    struct sockaddr_in own = *(const struct sockaddr_in *)address;
    if (own.sin_addr.s_addr == htonl(INADDR_ANY) || (own.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && own.sin_port)) {
      own.sin_addr.s_addr = pod;
      return NEXT(bind)(fd, (const struct sockaddr *)&own, sizeof own);
    }
  }
  if (address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr)) {
    struct sockaddr_in6 own = mapped(pod, ((const struct sockaddr_in6 *)address)->sin6_port);
    int only = 0, off = 0;
    socklen_t size = sizeof only;
    if (!getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, &size) && only) {
      /* Its twin for IPv4 has the pod's address; pods have no IPv6, so this one listens where nobody else does. */
      struct sockaddr_in6 aside = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
      return NEXT(bind)(fd, (const struct sockaddr *)&aside, sizeof aside);
    }
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    return NEXT(bind)(fd, (const struct sockaddr *)&own, sizeof own);
  }
  return NEXT(bind)(fd, address, length);
}

/* Does anything listen on the pod's own address at this port? Both tables, for an IPv6 socket may hold the mapped address. */
static int pod_listens(in_addr_t pod, in_port_t port) {
  static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
  char wanted[32], line[512];
  int found = 0;
  snprintf(wanted, sizeof wanted, "%08X:%04X", pod, ntohs(port));
  for (int i = 0; i < 2 && !found; i++) {
    FILE *file = fopen(tables[i], "re");
    while (file && !found && fgets(line, sizeof line, file)) {
      char local[64], state[8];
      size_t length;
      if (sscanf(line, " %*[^:]: %63s %*s %7s", local, state) != 2 || strcmp(state, "0A")) continue;
      length = strlen(local);
      found = length >= strlen(wanted) && !strcmp(local + length - strlen(wanted), wanted);
    }
    if (file) fclose(file);
  }
  return found;
}

static void bind_source(int fd, in_addr_t pod) {
  struct sockaddr_storage current;
  socklen_t size = sizeof current;
  int one = 1;
  if (getsockname(fd, (struct sockaddr *)&current, &size)) return;
  if (current.ss_family == AF_INET && !((struct sockaddr_in *)&current)->sin_port) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = pod};
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    NEXT(bind)(fd, (const struct sockaddr *)&own, sizeof own);
  } else if (current.ss_family == AF_INET6 && !((struct sockaddr_in6 *)&current)->sin6_port) {
    struct sockaddr_in6 own = mapped(pod, 0);
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    NEXT(bind)(fd, (const struct sockaddr *)&own, sizeof own);
  }
}

int connect(int fd, const struct sockaddr *address, socklen_t length) {
  in_addr_t pod = pod_address(), to = address ? as_v4(address) : INADDR_NONE;
  int saved = errno;
  if (pod == INADDR_NONE || to == INADDR_NONE || !is_loopback(to)) return NEXT(connect)(fd, address, length);
  bind_source(fd, pod);
  errno = saved;
  if (to == htonl(INADDR_LOOPBACK)) {
    if (address->sa_family == AF_INET && pod_listens(pod, ((const struct sockaddr_in *)address)->sin_port)) {
      struct sockaddr_in own = *(const struct sockaddr_in *)address;
      own.sin_addr.s_addr = pod;
      return NEXT(connect)(fd, (const struct sockaddr *)&own, sizeof own);
    }
    if (address->sa_family == AF_INET6 && pod_listens(pod, ((const struct sockaddr_in6 *)address)->sin6_port)) {
      struct sockaddr_in6 own = mapped(pod, ((const struct sockaddr_in6 *)address)->sin6_port);
      return NEXT(connect)(fd, (const struct sockaddr *)&own, sizeof own);
    }
  }
  return NEXT(connect)(fd, address, length);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
  char found[MOST_ADDRESSES][INET_ADDRSTRLEN];
  int count = name ? look_up(name, found, MOST_ADDRESSES) : 0;
  struct addrinfo **end = result;
  if (!count) return NEXT(getaddrinfo)(name, service, hints, result);
  if (hints && hints->ai_family == AF_INET6 && !(hints->ai_flags & AI_V4MAPPED)) return EAI_ADDRFAMILY;
  *result = NULL;
  for (int i = 0; i < count; i++) {
    /* Each entry is a list of its own kind; the real freeaddrinfo walks the chain and frees them one by one. */
    int failed = NEXT(getaddrinfo)(found[i], service, hints, end);
    if (failed) {
      *end = NULL;
      if (!*result) return failed;
      break;
    }
    while (*end) end = &(*end)->ai_next;
  }
  return 0;
}

static const char *first_address(const char *name, char found[1][INET_ADDRSTRLEN]) { return look_up(name, found, 1) ? found[0] : name; }

struct hostent *gethostbyname(const char *name) {
  char found[1][INET_ADDRSTRLEN];
  return NEXT(gethostbyname)(first_address(name, found));
}

struct hostent *gethostbyname2(const char *name, int family) {
  char found[1][INET_ADDRSTRLEN];
  return NEXT(gethostbyname2)(family == AF_INET ? first_address(name, found) : name, family);
}

int gethostbyname_r(const char *name, struct hostent *entry, char *buffer, size_t size, struct hostent **result, int *problem) {
  char found[1][INET_ADDRSTRLEN];
  return NEXT(gethostbyname_r)(first_address(name, found), entry, buffer, size, result, problem);
}

int gethostbyname2_r(const char *name, int family, struct hostent *entry, char *buffer, size_t size, struct hostent **result, int *problem) {
  char found[1][INET_ADDRSTRLEN];
  return NEXT(gethostbyname2_r)(family == AF_INET ? first_address(name, found) : name, family, entry, buffer, size, result, problem);
}

/* Pods' addresses have no reverse names; asking the machine's resolver for them could take many seconds. */
static int is_pod_address(in_addr_t address) { return is_loopback(address) && address != htonl(INADDR_LOOPBACK); }

int getnameinfo(const struct sockaddr *address, socklen_t length, char *host, socklen_t host_size, char *service, socklen_t service_size,
                int flags) {
  if (pod_address() != INADDR_NONE && address && is_pod_address(as_v4(address)) && !(flags & NI_NAMEREQD)) flags |= NI_NUMERICHOST;
  return NEXT(getnameinfo)(address, length, host, host_size, service, service_size, flags);
}

int gethostbyaddr_r(const void *address, socklen_t length, int family, struct hostent *entry, char *buffer, size_t size,
                    struct hostent **result, int *problem) {
  if (pod_address() != INADDR_NONE && family == AF_INET && length == 4 && is_pod_address(*(const in_addr_t *)address)) {
    *result = NULL;
    *problem = HOST_NOT_FOUND;
    return 0;
  }
  return NEXT(gethostbyaddr_r)(address, length, family, entry, buffer, size, result, problem);
}

int gethostname(char *buffer, size_t size) {
  const char *name = getenv("ELASTIC_POD_HOSTNAME");
  if (!name) return NEXT(gethostname)(buffer, size);
  snprintf(buffer, size, "%s", name);
  return 0;
}

int uname(struct utsname *result) {
  const char *name = getenv("ELASTIC_POD_HOSTNAME");
  int failed = NEXT(uname)(result);
  if (!failed && name) snprintf(result->nodename, sizeof result->nodename, "%s", name);
  return failed;
}

/* The interfaces a pod has in a network of its own: lo, and eth0 with the pod's address. One block of memory, freed as one. */
struct interfaces {
  struct ifaddrs entries[2];
  struct sockaddr_in addresses[2], masks[2];
  char names[2][8];
};

int getifaddrs(struct ifaddrs **result) {
  in_addr_t pod = pod_address();
  struct interfaces *all = pod == INADDR_NONE ? NULL : calloc(1, sizeof *all);
  if (pod == INADDR_NONE) return NEXT(getifaddrs)(result);
  if (!all) return -1;
  for (int i = 0; i < 2; i++) {
    strcpy(all->names[i], i ? "eth0" : "lo");
    all->addresses[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = i ? pod : htonl(INADDR_LOOPBACK)};
    all->masks[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xff000000)};
    all->entries[i].ifa_name = all->names[i];
    all->entries[i].ifa_flags = IFF_UP | IFF_RUNNING | (i ? IFF_MULTICAST : IFF_LOOPBACK);
    all->entries[i].ifa_addr = (struct sockaddr *)&all->addresses[i];
    all->entries[i].ifa_netmask = (struct sockaddr *)&all->masks[i];
  }
  all->entries[0].ifa_next = &all->entries[1];
  *result = all->entries;
  return 0;
}

void freeifaddrs(struct ifaddrs *first) {
  if (pod_address() == INADDR_NONE) NEXT(freeifaddrs)(first);
  else free(first);
}

/* What every pod knows by the same path and each has for itself: the termination message, and what is below the account's folder. */
static const char *own_path(const char *path) {
  static __thread char composed[PATH_MAX];
  const char *meant = getenv("ELASTIC_POD_MESSAGE_PATH"), *file = getenv("ELASTIC_POD_MESSAGE_FILE");
  const char *account = getenv("ELASTIC_POD_ACCOUNT_PATH"), *folder = getenv("ELASTIC_POD_ACCOUNT_FOLDER");
  size_t length = account ? strlen(account) : 0;
  if (path && meant && file && !strcmp(path, meant)) return file;
  if (!path || !length || !folder || strncmp(path, account, length) || (path[length] && path[length] != '/')) return path;
  return (size_t)snprintf(composed, sizeof composed, "%s%s", folder, path + length) < sizeof composed ? composed : path;
}

#define OPEN_WITH_MODE(name)                                   \
  int name(const char *path, int flags, ...) {                 \
    mode_t mode = 0;                                           \
    va_list rest;                                              \
    va_start(rest, flags);                                     \
    if (flags & (O_CREAT | O_TMPFILE)) mode = va_arg(rest, mode_t); \
    va_end(rest);                                              \
    return NEXT(name)(own_path(path), flags, mode);            \
  }

#define OPEN_BELOW_WITH_MODE(name)                             \
  int name(int folder, const char *path, int flags, ...) {     \
    mode_t mode = 0;                                           \
    va_list rest;                                              \
    va_start(rest, flags);                                     \
    if (flags & (O_CREAT | O_TMPFILE)) mode = va_arg(rest, mode_t); \
    va_end(rest);                                              \
    return NEXT(name)(folder, own_path(path), flags, mode);    \
  }

OPEN_WITH_MODE(open)
OPEN_WITH_MODE(open64)
OPEN_BELOW_WITH_MODE(openat)
OPEN_BELOW_WITH_MODE(openat64)

FILE *fopen(const char *path, const char *mode) { return NEXT(fopen)(own_path(path), mode); }
FILE *fopen64(const char *path, const char *mode) { return NEXT(fopen64)(own_path(path), mode); }

DIR *opendir(const char *path) { return NEXT(opendir)(own_path(path)); }
int access(const char *path, int mode) { return NEXT(access)(own_path(path), mode); }
int faccessat(int folder, const char *path, int mode, int flags) { return NEXT(faccessat)(folder, own_path(path), mode, flags); }
int stat(const char *path, struct stat *found) { return NEXT(stat)(own_path(path), found); }
int lstat(const char *path, struct stat *found) { return NEXT(lstat)(own_path(path), found); }
int fstatat(int folder, const char *path, struct stat *found, int flags) { return NEXT(fstatat)(folder, own_path(path), found, flags); }
int stat64(const char *path, struct stat64 *found) { return NEXT(stat64)(own_path(path), found); }
int lstat64(const char *path, struct stat64 *found) { return NEXT(lstat64)(own_path(path), found); }
int fstatat64(int folder, const char *path, struct stat64 *found, int flags) { return NEXT(fstatat64)(folder, own_path(path), found, flags); }
int statx(int folder, const char *path, int flags, unsigned mask, struct statx *found) {
  return NEXT(statx)(folder, own_path(path), flags, mask, found);
}
