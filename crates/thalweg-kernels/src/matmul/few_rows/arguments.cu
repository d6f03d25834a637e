struct NAME_arguments {
    const ELEMENT* a;
    const ELEMENT* b;
    ELEMENT* d;
    const ELEMENT* bias;
    const ELEMENT* addend;
    u64 m;
    u64 n;
    u64 k;
    u64 a_leading_dimension;
    u64 b_leading_dimension;
    u64 d_leading_dimension;
    u64 addend_leading_dimension;
    u64 flags;
    const ELEMENT* norm_weight;
    const ELEMENT* norm_bias;
    u64 eps;
};

typedef pack<ELEMENT, WIDTH> quad;
