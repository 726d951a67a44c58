/* routing_stubs.S - dlsym, dlvsym and the gates of symbols.def.
 *
 * They decide in C and then either answer or jump to the real function. All argument registers and the stack are as they
 * were, so the real function cannot tell that we were called first.
 */

    .text

#if defined(__x86_64__)

/* Save and restore the six registers that carry arguments; 8 bytes more keep the stack on 16. */
    .macro save_arguments
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    subq $8, %rsp
    .cfi_adjust_cfa_offset 56
    .endm

    .macro restore_arguments
    addq $8, %rsp
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    .cfi_adjust_cfa_offset -56
    .endm

    .macro landing
    endbr64
    .endm

/* The router gets the return address after the arguments of the function itself. */
    .macro find name, router, real
    function \name
    save_arguments
    .ifc \name, dlsym
    movq 56(%rsp), %rdx
    .else
    movq 56(%rsp), %rcx
    .endif
    call \router
    testq %rdx, %rdx
    jnz 1f
    call \real
    movq %rax, %r11
    restore_arguments
    testq %r11, %r11
    jz 2f
    jmp *%r11
2:  xorl %eax, %eax
    ret
1:  .cfi_adjust_cfa_offset 56
    restore_arguments
    ret
    end \name
    .endm

    .macro gate_body
    save_arguments
    movl $gate_index, %edi
    call vgpu_route_gate
    movq %rax, %r11
    restore_arguments
    testq %r11, %r11
    jz 1f
    jmp *%r11
1:  movl $801, %eax
    ret
    .endm

#elif defined(__aarch64__)

/* Save and restore the eight registers that carry arguments, and the one for a result in memory. None of these functions
 * takes or returns floating-point numbers, and what they pass on to does not either. */
    .macro save_arguments
    stp x29, x30, [sp, #-96]!
    .cfi_adjust_cfa_offset 96
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    .endm

    .macro restore_arguments
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    leave_frame
    .endm

    .macro leave_frame
    ldp x29, x30, [sp], #96
    .cfi_adjust_cfa_offset -96
    .cfi_restore x29
    .cfi_restore x30
    .endm

    .macro landing
    hint #34 /* bti c */
    .endm

    .macro find name, router, real
    function \name
    save_arguments
    .ifc \name, dlsym
    mov x2, x30
    .else
    mov x3, x30
    .endif
    bl \router
    cbnz x1, 1f
    bl \real
    mov x16, x0
    restore_arguments
    cbz x16, 2f
    br x16
2:  mov x0, #0
    ret
1:  .cfi_adjust_cfa_offset 96
    leave_frame
    ret
    end \name
    .endm

    .macro gate_body
    save_arguments
    mov w0, #gate_index
    bl vgpu_route_gate
    mov x16, x0
    restore_arguments
    cbz x16, 1f
    br x16
1:  mov w0, #801
    ret
    .endm

#else
#error "routing_stubs.S is written for x86-64 and arm64; another architecture needs its own"
#endif

    .macro function name
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    landing
    .endm

    .macro end name
    .cfi_endproc
    .size \name, . - \name
    .endm

/* void *dlsym(handle, name); void *dlvsym(handle, name, version) */
    find dlsym, vgpu_route_dlsym, vgpu_loader_dlsym
    find dlvsym, vgpu_route_dlvsym, vgpu_loader_dlvsym

/* One gate for each VGPU_GATE row: refused calls return CUDA_ERROR_NOT_SUPPORTED (801). */
    .set gate_index, 0
    .macro gate name
    function \name
    gate_body
    end \name
    .set gate_index, gate_index + 1
    .endm

#define VGPU_GATE(class, library, symbol, base, since, per_thread) gate symbol
#include "symbols.def"

    .section .note.GNU-stack, "", %progbits
