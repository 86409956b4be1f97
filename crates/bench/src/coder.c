/* Measures ISA-L as `coder.rs` measures our code: stripes of 8 data units and 2 parity units, on one core. Prints, for
 * each length of units, GB/s of data when parity is made and when two lost data units are restored. Tables are made once
 * before, which favours it. Arguments: lengths of units in bytes. */
#include <isa-l/erasure_code.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DATA = 8, PARITY = 2, RUNS = 5 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* GB/s of data in the best run of 0.1 s. */
static double rate(int bytes, unsigned char *tables, unsigned char **from, unsigned char **to) {
    double best = 0;
    for (int run = 0; run < RUNS; run++) {
        double begin = seconds(), took;
        long turns = 0;
        do {
            ec_encode_data(bytes, DATA, PARITY, tables, from, to);
            turns++;
            took = seconds() - begin;
        } while (took < 0.1);
        double this = turns * (double)bytes * DATA / took / 1e9;
        best = this > best ? this : best;
    }
    return best;
}

int main(int count, char **arguments) {
    for (int at = 1; at < count; at++) {
        int bytes = atoi(arguments[at]);
        unsigned char matrix[(DATA + PARITY) * DATA], left[DATA * DATA], inverse[DATA * DATA], tables[DATA * PARITY * 32];
        unsigned char *unit[DATA + PARITY], *from[DATA], *to[PARITY];
        for (int index = 0; index < DATA + PARITY; index++) {
            unit[index] = aligned_alloc(64, bytes);
            for (int byte = 0; byte < bytes; byte++)
                unit[index][byte] = rand();
        }
        gf_gen_cauchy1_matrix(matrix, DATA + PARITY, DATA);
        ec_init_tables(DATA, PARITY, matrix + DATA * DATA, tables);
        double encode = rate(bytes, tables, unit, unit + DATA);

        /* Units 1 and 5 are lost: the others and both parity units stand for them. */
        for (int row = 0, index = 0; index < DATA + PARITY; index++) {
            if (index == 1 || index == 5)
                continue;
            memcpy(left + row * DATA, matrix + index * DATA, DATA);
            from[row++] = unit[index];
        }
        if (gf_invert_matrix(left, inverse, DATA))
            return 1;
        memcpy(left, inverse + 1 * DATA, DATA);
        memcpy(left + DATA, inverse + 5 * DATA, DATA);
        ec_init_tables(DATA, PARITY, left, tables);
        for (int index = 0; index < PARITY; index++)
            to[index] = aligned_alloc(64, bytes);
        double decode = rate(bytes, tables, from, to);
        if (memcmp(to[0], unit[1], bytes) || memcmp(to[1], unit[5], bytes))
            return 2;
        printf("%d %.3f %.3f\n", bytes, encode, decode);
    }
    return 0;
}
