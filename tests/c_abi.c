/* The header is C: this file is C11 and calls what initialises its structs. */
#include "vkattn/vkattn.h"

#include <math.h>
#include <string.h>

/* 0 if every default is what the header says, else the number of the line that found another. */
int vkattn_c_abi_check(void);

#define EXPECT(condition) \
    if (!(condition)) return __LINE__

int vkattn_c_abi_check(void) {
    VkattnProblem problem;
    VkattnOptions options;
    VkattnContextInfo info;
    VkattnForwardArgs args;
    VkattnScratch scratch;
    VkattnBackward backward;
    VkattnBackwardArgs gradients;
    VkattnCombine combine;
    VkattnCombineArgs merge;
    VkattnPlan* plan = NULL;
    VkattnError error = {VKATTN_OK, 0, "", ""};
    /* A default that is not set shows. */
    memset(&options, 0x55, sizeof options);
    memset(&backward, 0x55, sizeof backward);
    memset(&gradients, 0x55, sizeof gradients);
    memset(&combine, 0x55, sizeof combine);
    memset(&merge, 0x55, sizeof merge);
    vkattn_problem_init(&problem);
    vkattn_options_init(&options);
    vkattn_context_info_init(&info);
    vkattn_forward_args_init(&args);
    vkattn_scratch_init(&scratch);
    vkattn_backward_init(&backward);
    vkattn_backward_args_init(&gradients);
    vkattn_combine_init(&combine);
    vkattn_combine_args_init(&merge);

    EXPECT(problem.struct_size == sizeof problem);
    EXPECT(problem.dtype == VKATTN_DTYPE_FLOAT32);
    EXPECT(problem.batch == 1 && problem.num_heads_q == 1 && problem.num_heads_kv == 1);
    EXPECT(problem.seqlen_q == 0 && problem.seqlen_kv == 0);
    EXPECT(isnan(problem.softmax_scale));
    EXPECT(problem.softcap == 0 && problem.causal == 0);
    EXPECT(problem.window_left == -1 && problem.window_right == -1);
    EXPECT(problem.align == VKATTN_ALIGN_BOTTOM_RIGHT && problem.query_offset == 0);
    EXPECT(problem.kv_lengths == 0 && problem.mask == VKATTN_MASK_NONE);
    EXPECT(problem.query_strides.batch == VKATTN_CONTIGUOUS && problem.out_strides.seq == VKATTN_CONTIGUOUS);
    EXPECT(problem.mask_strides.batch == VKATTN_CONTIGUOUS && problem.mask_strides.seq == VKATTN_CONTIGUOUS);
    EXPECT(problem.alignment_bytes == 0);

    EXPECT(options.struct_size == sizeof options);
    EXPECT(options.kernel == NULL && options.tuning == NULL && options.max_scratch_bytes == 0);
    EXPECT(options.precision == VKATTN_PRECISION_STORAGE && options.max_dispatch_flops == 0);
    EXPECT(options.num_splits == 0 && options.batch_invariant == 0);
    EXPECT(info.struct_size == sizeof info);
    EXPECT(info.get_instance_proc_addr == NULL && info.device == VK_NULL_HANDLE && info.features == NULL);
    EXPECT(args.struct_size == sizeof args);
    EXPECT(args.scratch_bytes == 0);
    EXPECT(args.query == 0 && args.lse == 0 && args.scratch_buffer == VK_NULL_HANDLE);
    EXPECT(scratch.struct_size == sizeof scratch && scratch.size_bytes == 0);

    EXPECT(backward.struct_size == sizeof backward && backward.dlse == 0 && backward.dbias == 0);
    const VkattnStrides* const strides[] = {&backward.dout_strides, &backward.dquery_strides,
                                            &backward.dkey_strides, &backward.dvalue_strides,
                                            &combine.parts_strides, &combine.out_strides};
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++)
        EXPECT(strides[i]->batch == VKATTN_CONTIGUOUS && strides[i]->head == VKATTN_CONTIGUOUS &&
               strides[i]->seq == VKATTN_CONTIGUOUS);
    const VkattnBackwardArgs no_gradients = {.struct_size = sizeof gradients};
    EXPECT(memcmp(&gradients, &no_gradients, sizeof gradients) == 0);
    EXPECT(combine.struct_size == sizeof combine && combine.dtype == VKATTN_DTYPE_FLOAT32);
    EXPECT(combine.parts_dtype == VKATTN_DTYPE_FLOAT32 && combine.num_parts == 1 && combine.batch == 1);
    EXPECT(combine.num_heads == 1 && combine.seqlen_q == 0 && combine.alignment_bytes == 0);
    EXPECT(combine.part_stride == VKATTN_CONTIGUOUS);
    EXPECT(merge.struct_size == sizeof merge && merge.parts == 0 && merge.lse == 0);

    EXPECT(vkattn_version()[0] != 0);
    EXPECT(vkattn_status_name(VKATTN_UNSUPPORTED)[0] == 'U');
    EXPECT(vkattn_plan_create(NULL, &problem, &options, NULL, &error) == VKATTN_INVALID_ARGUMENT);
    EXPECT(error.status == VKATTN_INVALID_ARGUMENT && error.message[0] != 0);
    EXPECT(vkattn_backward_create(NULL, &problem, &backward, &options, &plan, &error) ==
           VKATTN_INVALID_ARGUMENT);
    EXPECT(plan == NULL && error.field[0] == 'c');
    EXPECT(vkattn_cmd_backward(VK_NULL_HANDLE, plan, &gradients, &error) == VKATTN_INVALID_ARGUMENT);
    EXPECT(vkattn_cmd_backward_range(VK_NULL_HANDLE, plan, &gradients, 0, 1, NULL) ==
           VKATTN_INVALID_ARGUMENT);
    return 0;
}
