// SPDX-License-Identifier: Apache-2.0
//
// Redirects REQUESTs of peers at the port of a switch (formats/peer.md, section 3): parses, looks up who holds the
// objects, chooses in turn, rewrites and sends by the member's port. Whatever it does not understand or cannot decide
// goes on unchanged. `fast.rs` loads it and fills its maps; both know the layouts.
//
// Needs clang and the kernel's own headers only.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define uint_of(name, value) int (*name)[value]
#define type_of(name, value) typeof(value) *name

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*now_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*redirect_to)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*pull)(struct __sk_buff *skb, __u32 bytes) = (void *)BPF_FUNC_skb_pull_data;
static __s64 (*sum_of_change)(__be32 *from, __u32 from_bytes, __be32 *to, __u32 to_bytes, __wsum seed) =
	(void *)BPF_FUNC_csum_diff;
static long (*change_sum)(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 flags) =
	(void *)BPF_FUNC_l4_csum_replace;

#define SWARMS 64
#define MEMBERS 64		/* of a swarm: one bit each */
#define ROWS 16384		/* batches of all swarms */
#define OBJECTS 32		/* of a batch */
#define ETHERNET 14
#define UDP 8
#define REQUEST 80
#define AVOIDED 4
#define NULL ((void *)0)

struct config {
	__u64 alive_until_ns;	/* CLOCK_MONOTONIC; the agent renews it */
	__u8 server[16];	/* IPv4: the first 4 bytes */
	__be16 port;
	__u8 is_v4;
	__u8 unused;
	__u8 mac[6];		/* of the bridge */
	__u8 unused2[6];
};

struct swarm {
	__u32 slot;
	__u32 first;		/* its first row */
	__u32 batches;
	__u32 unused;
};

struct member {
	__u64 id;		/* 0: nobody */
	__u8 address[16];
	__be16 port;
	__u8 mac[6];
	__u32 ifindex;
	__u32 unused;
};

/* For each object of a batch: which members hold it. */
struct row {
	__u64 holders[OBJECTS];
};

struct request {
	__u8 magic[4];
	__u8 version, type, hops, flags;
	__u64 swarm, member;
	__u32 number, batch, mask;
	__u8 blamed, zero[3];
	__u64 avoided[AVOIDED];
	__u8 tag[8];
} __attribute__((packed));

struct {
	uint_of(type, BPF_MAP_TYPE_ARRAY);
	uint_of(max_entries, 1);
	type_of(key, __u32);
	type_of(value, struct config);
} CONFIG SEC(".maps");

struct {
	uint_of(type, BPF_MAP_TYPE_HASH);
	uint_of(max_entries, SWARMS);
	type_of(key, __u64);
	type_of(value, struct swarm);
} SWARM SEC(".maps");

struct {
	uint_of(type, BPF_MAP_TYPE_ARRAY);
	uint_of(max_entries, SWARMS * MEMBERS);
	type_of(key, __u32);
	type_of(value, struct member);
} MEMBER SEC(".maps");

struct {
	uint_of(type, BPF_MAP_TYPE_ARRAY);
	uint_of(max_entries, ROWS);
	type_of(key, __u32);
	type_of(value, struct row);
} ROW SEC(".maps");

/* Members behind a port: the key is slot << 32 | ifindex. */
struct {
	uint_of(type, BPF_MAP_TYPE_HASH);
	uint_of(max_entries, SWARMS * MEMBERS);
	type_of(key, __u64);
	type_of(value, __u64);
} NEAR SEC(".maps");

/* The member of a swarm that is next in turn. */
struct {
	uint_of(type, BPF_MAP_TYPE_ARRAY);
	uint_of(max_entries, SWARMS);
	type_of(key, __u32);
	type_of(value, __u32);
} TURN SEC(".maps");

struct {
	uint_of(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	uint_of(max_entries, 1);
	type_of(key, __u32);
	type_of(value, __u64);
} REDIRECTED SEC(".maps");

INLINE int equal(const __u8 *a, const __u8 *b, int words)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;
	int same = 1;
#pragma unroll
	for (int i = 0; i < words; i++)
		same &= x[i] == y[i];
	return same;
}

/* The first bit from `turn` on, going round. */
INLINE __u32 next_of(__u64 set, __u32 turn)
{
	__u64 turned = turn ? set >> turn | set << (64 - turn) : set;

	return (__builtin_ctzll(turned) + turn) & 63;
}

/* Whom to ask. NULL: the server. */
INLINE struct member *choose(struct __sk_buff *skb, const struct request *request)
{
	__u64 swarm_id = request->swarm, asker = request->member, all = ~0ULL, any = 0, *near_by, near;
	__u32 batch = request->batch, mask = request->mask, row_at, *turn;
	struct swarm *swarm = map_lookup(&SWARM, &swarm_id);
	struct row *row;

	if (!swarm || batch >= swarm->batches)
		return NULL;
	row_at = swarm->first + batch;
	row = map_lookup(&ROW, &row_at);
	turn = map_lookup(&TURN, &swarm->slot);
	if (!row || !turn)
		return NULL;
#pragma clang loop unroll(disable)
	for (int i = 0; i < OBJECTS; i++) {
		__u64 wanted = -(__u64)(mask >> i & 1);

		all &= row->holders[i] | ~wanted;
		any |= row->holders[i] & wanted;
	}
	if (!any)
		return NULL;
	near = (__u64)swarm->slot << 32 | skb->ifindex;
	near_by = map_lookup(&NEAR, &near);
	near = near_by ? *near_by : 0;
	/* The asker, those to avoid, and one more. */
#pragma clang loop unroll(disable)
	for (int attempt = 0; attempt < AVOIDED + 2; attempt++) {
		__u64 set = any & near;
		__u32 index, at;
		struct member *member;
		int refused;

		if (set)
			set = all & set ? all & set : set;
		else
			set = all ? all : any;
		if (!set)
			return NULL;
		index = next_of(set, *turn & 63);
		at = swarm->slot * MEMBERS + index;
		member = map_lookup(&MEMBER, &at);
		if (!member)
			return NULL;
		refused = !member->id || member->id == asker;
#pragma unroll
		for (int i = 0; i < AVOIDED; i++)
			refused |= member->id == request->avoided[i];
		if (!refused) {
			*turn = index + 1;
			return member;
		}
		all &= ~(1ULL << index);
		any &= ~(1ULL << index);
	}
	return NULL;
}

INLINE int send(struct __sk_buff *skb, const struct config *config, const struct member *member, int is_v4)
{
	const int ip_bytes = is_v4 ? 20 : 40, at = ETHERNET + (is_v4 ? 16 : 24), bytes = is_v4 ? 4 : 16;
	const int udp = ETHERNET + ip_bytes, end = udp + UDP + REQUEST;
	__u8 *data = (void *)(long)skb->data;
	__be32 old_address[4] = {}, new_address[4] = {}, old_rest, new_rest;
	__u64 *count, address_change, rest_change;
	__u32 zero = 0;

	if (data + end > (__u8 *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(old_address, data + at, bytes);
	__builtin_memcpy(new_address, member->address, bytes);
	/* Port, and the bytes of hops and flags: aligned to 16 bits both. */
	old_rest = *(__u16 *)(data + udp + 2) | (__u32)*(__u16 *)(data + udp + UDP + 6) << 16;
	new_rest = member->port | (__u32)(*(__u16 *)(data + udp + UDP + 6) + 1) << 16;
	address_change = sum_of_change(old_address, bytes, new_address, bytes, 0);
	rest_change = sum_of_change(&old_rest, 4, &new_rest, 4, 0);
	if (change_sum(skb, udp + 6, 0, address_change, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0))
		return TC_ACT_UNSPEC;
	if (change_sum(skb, udp + 6, 0, rest_change, BPF_F_MARK_MANGLED_0))
		return TC_ACT_SHOT;
	data = (void *)(long)skb->data;
	if (data + end > (__u8 *)(long)skb->data_end)
		return TC_ACT_SHOT;
	__builtin_memcpy(data, member->mac, 6);
	__builtin_memcpy(data + 6, config->mac, 6);
	__builtin_memcpy(data + at, new_address, bytes);
	*(__u16 *)(data + udp + 2) = member->port;
	data[udp + UDP + 6] = 1;
	if (is_v4) {
		__u32 sum = (__u16)~*(__u16 *)(data + ETHERNET + 10);
		__u64 wide = address_change + sum;

		wide = (wide & 0xffffffff) + (wide >> 32);
		wide = (wide & 0xffff) + (wide >> 16 & 0xffff) + (wide >> 32);
		wide = (wide & 0xffff) + (wide >> 16);
		wide = (wide & 0xffff) + (wide >> 16);
		*(__u16 *)(data + ETHERNET + 10) = ~wide;
	}
	count = map_lookup(&REDIRECTED, &zero);
	if (count)
		*count += 1;
	return redirect_to(member->ifindex, 0);
}

INLINE int handle(struct __sk_buff *skb, int is_v4)
{
	const int ip_bytes = is_v4 ? 20 : 40, udp = ETHERNET + ip_bytes, end = udp + UDP + REQUEST;
	__u8 *data = (void *)(long)skb->data, *ip;
	struct request *request;
	struct config *config;
	struct member *member;
	__u32 zero = 0;

	if (data + end > (__u8 *)(long)skb->data_end) {
		if (pull(skb, end))
			return TC_ACT_UNSPEC;
		data = (void *)(long)skb->data;
		if (data + end > (__u8 *)(long)skb->data_end)
			return TC_ACT_UNSPEC;
	}
	ip = data + ETHERNET;
	request = (void *)(data + udp + UDP);
	/* The protocol first: most frames of this length are something else. */
	if (is_v4 ? ip[9] != 17 || ip[0] != 0x45 : ip[6] != 17 || ip[0] >> 4 != 6)
		return TC_ACT_UNSPEC;
	if (*(__u16 *)(data + 12) != (is_v4 ? 0x0008 : 0xdd86) || skb->vlan_present)
		return TC_ACT_UNSPEC;
	if (*(__u32 *)request->magic != 0x45504344 ||
	    (*(__u32 *)&request->version & 0x01ffffff) != 0x00000301)
		return TC_ACT_UNSPEC;
	if (is_v4 ? *(__u16 *)(ip + 6) & 0xff3f : 0)
		return TC_ACT_UNSPEC;
	/* Who blames somebody tells the server. */
	if (*(__u16 *)(data + udp + 4) != 0x5800 || request->blamed || !request->mask)
		return TC_ACT_UNSPEC;
	config = map_lookup(&CONFIG, &zero);
	if (!config || config->is_v4 != is_v4 || config->port != *(__u16 *)(data + udp + 2))
		return TC_ACT_UNSPEC;
	if (!equal(config->server, ip + (is_v4 ? 16 : 24), is_v4 ? 1 : 4) || now_ns() > config->alive_until_ns)
		return TC_ACT_UNSPEC;
	member = choose(skb, request);
	return member ? send(skb, config, member, is_v4) : TC_ACT_UNSPEC;
}

SEC("classifier")
int redirect(struct __sk_buff *skb)
{
	/* A REQUEST has one length: everything else leaves here. */
	if (skb->len == ETHERNET + 20 + UDP + REQUEST)
		return handle(skb, 1);
	if (skb->len == ETHERNET + 40 + UDP + REQUEST)
		return handle(skb, 0);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Apache-2.0";
